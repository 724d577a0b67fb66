"""Short stories for children, planned before they are told.

A story is planned as a cast, a place, a thing and a plot; each plot is a function that tells what
happens, beat by beat, and keeps the facts straight: who has what, where it was lost and so where
it is found, who can do what, and what time it is. The words of each beat come from the grammar.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from cast import MORE_THINGS, PLACES, SKILLS, SPECIES, THINGS, Place, Spot, Thing, Who, animal, child, elder, TRAIT_SHOWN
from grammar import Writer, polish

FRAGMENTS: dict[str, list[str]] = {
    "happy": ["happy", "glad", "delighted", "full of joy", "as happy as could be", "very pleased", "overjoyed"],
    "sad": ["sad", "unhappy", "very sad", "close to tears", "gloomy", "downhearted"],
    "scared": ["scared", "frightened", "afraid", "a little scared", "very nervous"],
    "tired": ["tired", "worn out", "very sleepy", "tired but happy"],
    "smiled": ["smiled", "laughed", "grinned", "beamed", "clapped"],
    "morning": ["one [sunny|bright|fine|clear|quiet|fresh] morning", "one [fine|lovely|warm|ordinary] day", "one day", "early one morning", "one [Monday|Tuesday|Saturday|Sunday|Friday] morning", "one morning after breakfast", "on the first day of [spring|summer|autumn|the holidays]"],
    "later": ["after a while", "before long", "a little later", "by and by", "soon", "after some time"],
    "suddenly": ["suddenly", "all at once", "just then", "at that very moment", "then, without any warning,"],
    "goodidea": ["I have an idea!", "I know what to do!", "Wait, I have a plan!", "Listen, I have thought of something!", "I think I know how!"],
    "thanks": ["Thank you, thank you!", "Thank you so much!", "How can I ever thank you?", "Oh, thank you!", "You are so kind. Thank you!"],
    "welcome": ["That is what friends are for.", "You would have done the same for me.", "It was nothing, really.", "I am glad that I could help.", "Everyone needs help sometimes."],
    "ohno": ["Oh no!", "Oh dear!", "Oh, what have I done?", "Oh my!", "Dear me!"],
    "greeted": ["Good morning", "Hello", "Good day", "Hello there"],
    "asked": ["asked", "asked softly", "wanted to know", "asked kindly"],
    "cried": ["cried", "shouted", "called", "called out"],
    "food": ["[warm|fresh] bread and honey", "a big bowl of soup", "pancakes with berries", "apple pie", "plum cake", "hot cocoa and biscuits", "cheese and pears", "nut cake", "blueberry muffins", "berry tart", "carrot soup", "honey cakes"],
    "heart": ["{h.His} heart beat fast.", "{h.His} heart gave a great thump.", "A shiver ran down {h.his} back.", "{h.He} held {h.his} breath."],
    "sadbody": ["A tear rolled down {h.his} cheek.", "{h.He} sat down and sighed.", "{h.His} eyes filled with tears.", "{h.He} hung {h.his} head.", "There was a lump in {h.his} throat."],
    "gladbody": ["{h.He} jumped for joy.", "{h.He} danced around in a circle.", "{h.His} eyes shone.", "{h.He} laughed out loud.", "{h.He} felt warm all the way down to {h.his} toes."],
    "warmday": ["the sun was [shining|smiling down]", "the sky was [blue|clear|bright blue]", "not a cloud was in the sky", "a [soft|light|gentle] [wind|breeze] was blowing", "the world looked [new|fresh|clean and bright]"],
    "evening": ["the sun was going down", "the sky turned pink and gold", "the first star came out", "the shadows grew long", "evening came", "the moon climbed over {p}"],
}

OPENINGS = [
    "Once upon a time, [there was|there lived] {h.intro}. {h.He} lived in a {h.home} {p.of}.",
    "Once upon a time, {p.inside}, there [lived|was] {h.intro}.",
    "Once upon a time, {p.in_a}, there [lived|was] {h.intro}.",
    "Once upon a time there was {h.intro} who loved [{like}|{like} and {like}].",
    "Once there was {h.intro}, who lived in a {h.home} {p.of}.",
    "Long, long ago, {p.in_a}, lived {h.intro}.",
    "{p.in_a} there lived {h.intro}.",
    "{h.intro} lived in a {h.home} {p.of}.",
    "There was once {h.intro} who lived {p.inside}.",
    "Far away, {p.in_a}, there lived {h.intro}.",
]
OTHER_OPENINGS = [
    "One day, {h.intro} [went for a walk|was sitting {spot4}|looked up at the sky|set out to see the world|came to {spot4.the}]. {h.He} lived in a {h.home} {p.of}.",
    "One [sunny|cold|rainy|windy|quiet] [morning|afternoon|evening], {h.intro} [sat|was playing|was resting] {spot4}.",
    "There once was {h.intro}, who lived {p.inside}.",
    "There once was {h.intro}. {h.He} lived in a {h.home} {p.of}.",
    "There was {h.intro} who lived in a {h.home} {p.of}.",
    "Once upon a time, {h.intro} lived in a {h.home} {p.of}.",
    "Once upon a time {h.intro} [went out to see the world|had a strange dream|wanted to learn something new]. {h.He} lived {p.inside}.",
    "A long time ago, [there was|there lived] {h.intro}. {h.He} lived {p.inside}.",
    "A long time ago, {p.in_a}, there lived {h.intro}.",
    "Many years ago, {h.intro} lived {p.inside}.",
    "It was a [dark|stormy|quiet|cold|warm|bright] [night|evening|morning] {p.of}. {h.intro} [could not sleep|was wide awake|looked out of the window|sat {spot4}].",
    "This is the story of {h.intro}[|, who lived {p.inside}].",
    "Let me tell you about {h.intro}. {h.He} lived in a {h.home} {p.of}.",
    "Have you ever heard of {h.intro}? {h.He} lived {p.inside}.",
    "Every morning {h.intro} [walked|went] to {spot4.the} [to watch the sun come up|and looked around].",
    "{h.short} lived in a {h.home} {p.of}.",
    "{h} was {h.intro_noun} who lived {p.inside}.",
    "The [|little |young |old ]{h.kind} lived in a {h.home} {p.of}. {h.His} name was {h}.",
    "At the edge of {p}, in a {h.home}, lived {h.intro}.",
    "Not so long ago, {h.intro} lived {p.inside}.",
    "[The|A|An old|The old|The little|A strange|My|Our|The last] {any} [stood|lay|was|could be seen] {spot4}. [Not far away|Close by|Near it] lived {h.intro}.",
    "Nobody knew [why|where|how] the {any} had [come|gone|changed]. Only {h.intro} [wondered about it|had an idea]. {h.He} lived {p.inside}.",
    "[Snow|Rain|Mist|Sunlight|Moonlight] [fell on|covered|lay over] {p}. In a {h.home} lived {h.intro}.",
    "When {h} was [very small|young|a baby], {h.he} came to live {p.inside}. {h.He} was {h.intro_noun}.",
]
LIKES = ["jumping over puddles", "singing silly songs", "telling stories", "collecting [leaves|stones|feathers]", "playing hide-and-seek", "watching the clouds", "climbing", "running races", "drawing pictures in the sand", "listening to the rain", "counting the stars", "dancing", "building towers of stones", "making up riddles"]
GIFTS = ["It had been a gift from {h.his} [grandmother|grandfather|aunt|uncle|best friend].", "{h.He} had [found|made] it all by {h.himself}.", "{h.He} had got it for {h.his} birthday.", "It had once belonged to {h.his} [grandmother|grandfather|mother|father].", "{h.His} [mother|father] had bought it at the market."]


@dataclass
class Request:
    """What a story must contain, where somebody asked for it; what is None is drawn."""

    hero: str | None = None  # a species, "girl" or "boy"
    thing: str | None = None
    name: str | None = None
    place: str | None = None
    plot: str | None = None
    friend: str | None = None


@dataclass
class Story:
    """A story being told: its cast, its text so far, and the facts one could ask about."""

    rng: random.Random
    hero: Who
    friend: Who
    elder: Who
    place: Place
    thing: Thing
    plot: str
    writer: Writer
    spots: list[Spot]
    paragraphs: list[list[str]] = field(default_factory=lambda: [[]])
    facts: dict[str, str] = field(default_factory=dict)
    short: bool = False

    def say(self, *templates: str) -> None:
        """Tells one of the templates."""
        text = polish(self.writer.expand(self.rng.choice(templates)).strip())
        if text:
            self.paragraphs[-1].append(text)

    def maybe(self, chance: float, *templates: str) -> None:
        """Tells one of the templates, or nothing; a short story leaves out more."""
        if self.rng.random() < (chance * 0.4 if self.short else chance):
            self.say(*templates)

    def para(self) -> None:
        """Begins a new paragraph."""
        if self.paragraphs[-1]:
            self.paragraphs.append([])

    def fact(self, key: str, template: str) -> None:
        """Notes what a reader could be asked about the story."""
        self.facts[key] = self.writer.expand(template)

    def text(self) -> str:
        """The story so far, paragraphs separated by an empty line."""
        return "\n\n".join(" ".join(p) for p in self.paragraphs if p)


# ---------------------------------------------------------------- beats that all plots share


def opening(s: Story, with_thing: bool = True) -> None:
    """Who, where, and what the hero loves."""
    if s.rng.random() < 0.3:
        s.say(*OTHER_OPENINGS)
    else:
        s.say(*OPENINGS)
    s.maybe(0.6, *TRAIT_SHOWN[s.hero.trait])
    s.maybe(0.35, "{h} loved {like}[| and {like}].", "Most of all {h.he} liked {like}.", "Every day {h.he} spent hours {like}.")
    if with_thing:
        s.say(
            "{h} had {o.a}, and {o.detail}.",
            "{h.His} favourite thing in the [whole|whole wide] world was {o.a}. {gift}",
            "{h} owned {o.a}. {gift}[| {o.detail}.]",
            "Wherever {h.he} went, {h.he} took {o.a} along, for {o.detail}.",
            "{h} had {o.a} that {h.he} loved very much. [{gift}|{o.detail}.]",
        )


def meet_friend(s: Story) -> None:
    """Introduces the friend."""
    s.say(
        "{h.His} best friend was {f.intro}.",
        "{h} had a good friend, {f.intro}.",
        "Not far away lived {h.his} friend, {f.intro}.",
        "{h.He} often played with {f.intro}, who lived nearby.",
    )


def set_out(s: Story) -> None:
    """A day begins."""
    s.para()
    s.say(
        "{morning}, {warmday}, and {h} went out[| to play| for a walk].",
        "One [fine|bright|spring|summer|quiet] [morning|day] {h} woke up [early|with the birds|very early]. {warmday}.",
        "{morning}, {h} looked out and saw that {warmday}.",
        "{morning}, {h} {h.ran} out of the {h.bare_home}. {warmday}, and {sight}.",
    )


def sight(s: Story, chance: float = 0.5) -> None:
    """A glance at the place."""
    s.maybe(chance, "{sight}.", "All around, {sight}.", "{sight}, and {sight}.")


def home_again(s: Story) -> None:
    """The way home and the evening."""
    s.para()
    s.maybe(
        0.75,
        "When {evening}, they [all|both] went home and ate {food}.",
        "That evening they sat together, ate {food}, and [talked|laughed] until {evening2}.",
        "{evening}. {h} was {tired}.",
        "They [walked|went] home [side by side|slowly|together] while {evening}.",
        "That night {h} lay in bed and thought about everything that had happened.",
        "Back home, there was {food} for everyone.",
    )


def moral(s: Story, *lessons: str) -> None:
    """What the hero learned. A lesson completes "{h} learned that ..."."""
    lesson = s.writer.expand(s.rng.choice(lessons))
    s.facts["lesson"] = lesson
    s.writer.env["lesson"] = lesson
    s.maybe(
        0.85 if not s.short else 2.0,
        "From that day on, {h} [knew|remembered] that {lesson}.",
        "And {h} [never forgot|always remembered] that {lesson}.",
        "That day {h} learned that {lesson}.",
        "Now {h} knew that {lesson}.",
    )


def closing(s: Story) -> None:
    """The last sentence, often about the thing the story began with."""
    s.maybe(
        0.8,
        "And they were [friends|the best of friends] ever after.",
        "And if you ever walk past {spot1.the}, you may hear them laughing still.",
        "The end.",
        "And that is how it was.",
        "{h} fell asleep with a smile.",
        "And they all lived happily ever after.",
        "It had been a [very good|wonderful|long and happy] day.",
        "Outside, {sight2}. All was well.",
        "As for {o.the}, {h} kept it [next to {h.his} bed|on the windowsill|close] [for many years|always].",
    )


def chat_between(s: Story) -> None:
    """A small exchange while they walk."""
    s.maybe(
        0.4,
        '"Do you think it will rain?" asked {h}. "I hope not," said {f}[|, looking up at the sky].',
        '"Are we nearly there?" asked {f}. "Almost," said {h}.',
        '"I am a little hungry," said {f}. {h} shared {h.his} [bread|apple|biscuits] with {f.him}.',
        '"What a fine day for an adventure," said {f}. {h} nodded.',
        'On the way {h} sang a song, and {f} hummed along.',
    )


# ---------------------------------------------------------------- plots


def lost_thing(s: Story) -> None:
    """The thing is lost through something that happened, looked for, and found exactly there."""
    opening(s)
    meet_friend(s)
    set_out(s)
    s.say("{h} and {f} met {spot1}. They [played|raced|chased each other] {spot1} until they were out of breath. Then they went on to {spot2.noun} to [rest|have a picnic|look for berries].",
          "First {h} and {f} played {spot1}. After that they [walked|wandered] on to {spot2.noun}, where they [ate {food}|rested in the shade|told each other riddles].")
    sight(s, 0.4)
    cause = s.rng.choice(["slipped", "bird", "wind", "pocket"])
    s.para()
    s.say("When it was time to go, {h} reached for {o.the}. It was gone!",
          "{suddenly} {h} stopped. Where was {o.the}? It was gone!",
          'Then {h} looked down. "{ohno} My {o} is gone!" {h.he} {cried}.')
    s.say("{sadbody}")
    s.say('"Do not cry," said {f}. "We will [find it|look for it] together."',
          '"When did you last have it?" asked {f}. {h} tried to remember, but {h.he} could not.',
          '"Two can search better than one," said {f}, and {f.he} took {h} by the {h.hand}.')
    s.say("They looked {spot2}, but they found only [an old shoe|a heap of leaves|a sleepy beetle|a few pebbles|a surprised spider]. They looked {spot3}, but it was not there either.",
          "First they searched {spot2}. Nothing. Then they searched {spot3}. Nothing again.")
    s.para()
    if cause == "slipped":
        s.say("Then they met {e.intro}. \"[Why so sad|What is the matter|What are you looking for]?\" asked {e}. {h} told {e.him} everything.",
              "Along came {e.intro}. {e.He} listened to the whole story.")
        s.say('"When we jump and run, things slip out of our bags," said {e}. "Go back to the place where you played first."',
              '"Think back to the beginning," said {e}. "Where did you run and jump this morning?"')
        s.say("They {h.ran} back, and there, {spot1}, lay {o.the}! It had slipped out of {h.his} {h.bag} while they were playing.",
              'So they went back to where the day had begun. "There it is!" {cried} {f}. {spot1}, half hidden in the shadow, lay {o.the}.')
        s.fact("helper", "{e}")
        s.fact("found", "{spot1}")
    elif cause == "bird":
        s.say("{suddenly} something [glittered|flashed] high up {spot4}. A magpie sat there, looking very proud.",
              "Then {f} heard a chattering sound {spot4}. It was a magpie.")
        s.say('"I thought it belonged to nobody," said the magpie. "It is so pretty!" {h} explained how much {h.he} loved it.',
              '"Please, may we have it back?" asked {h}. "It means so much to me." The magpie looked ashamed.')
        s.say('"I am sorry," said the magpie, and gave {o.the} back. {h} gave the magpie a [shiny button|silver paper star|bright glass bead] instead, and both of them were happy.',
              'The magpie put {o.the} down at once. "I did not mean to steal," it said. "Then come and play with us," said {h}.')
        s.fact("helper", "{f}")
        s.fact("found", "with a magpie {spot4}")
    elif cause == "wind":
        s.say("Just then a gust of wind blew {h.his} hat off, and it rolled all the way to {spot3b.noun}. {h} {h.ran} after it, and what did {h.he} see?",
              "The wind began to blow harder. It carried leaves and grass toward {spot3b.noun}. \"If the wind takes everything there,\" said {f}, \"then let us look there too.\"")
        s.say("There, {spot3b}, was {o.the}! The wind had carried it all that way.", "And there it was, {spot3b}: {o.the}, a little dusty, but safe.")
        s.fact("helper", "{f}")
        s.fact("found", "{spot3b}")
    else:
        s.say("{h} sat down on the ground to think. Something hard poked {h.him} in the side. {h.He} put {h.his} {h.hand} into {h.his} {h.bag}, and out came {o.the}!",
              '"Have you looked in your own {h.bag}?" asked {f} at last. {h} looked. There, at the very bottom, was {o.the}!')
        s.say("Both of them laughed until their sides hurt.", '"It was there all the time!" {h} laughed.')
        s.fact("helper", "{f}")
        s.fact("found", "in {h.his} own bag")
    s.say("{gladbody}", "{h} held it tight and was {happy}.", '"{thanks}" said {h}. "{welcome}"')
    s.fact("problem", "{h} lost {h.his} {o}")
    home_again(s)
    moral(s, "it is best to look after the things you love", "a friend makes every search shorter", "it is wise to look near before you look far", "things are easier to find when you stay calm")
    closing(s)


RESCUE = {
    "light": ("{c.he} had crawled into a dark cave and could not find the way out", "held up {o.the}, and its light showed the way out", "too dark to see anything"),
    "sound": ("{c.he} was stuck and too small to be heard", "made as loud a sound as {h.he} could with {o.the}, until help came from every side", "too quiet for anyone to hear"),
    "tie": ("{c.he} had fallen into a deep hole", "let down one end of {o.the} and pulled {c.him} up", "too deep to climb out"),
    "warm": ("{c.he} was shivering with cold", "wrapped {o.the} around {c.him} until {c.he} stopped shivering", "too cold to move"),
    "hold": ("all {c.his} berries had rolled away", "gathered every berry and carried them home in {o.the}", "too many to carry"),
    "find": ("{c.he} could not find the way home", "used {o.the} to find the way", "too far from home"),
    "cover": ("{c.he} was soaked by the rain", "held {o.the} over them both", "too wet to go on"),
    "dig": ("a heap of earth had covered {c.his} door", "dug with {o.the} until the door was free", "too heavy to move"),
    "reach": ("{c.he} was stuck high up and could not get down", "held up {o.the} so that {c.he} could climb down", "too high to jump"),
    "carry": ("{c.he} had hurt {c.his} foot and could not walk", "let {c.him} ride on {o.the} all the way home", "too far to walk"),
    "mend": ("the roof of {c.his} house had a hole in it", "mended the roof with {o.the} before the rain came", "too hard to fix alone"),
    "shine": ("{c.he} was lost in the shade and nobody could see {c.him}", "caught the sun with {o.the} and sent a flash of light to {c.his} family", "too far away to call"),
    "toy": ("{c.he} had nobody to play with", "let {c.him} play with {o.the} for as long as {c.he} liked", "too lonely to smile"),
    "treasure": ("{c.he} had broken {c.his} mother's favourite necklace", "gave {c.him} {o.the} so that {c.he} could give it to {c.his} mother", "too sad to go home"),
    "wear": ("the sun had made {c.his} head hot and dizzy", "put {o.the} on {c.his} head, and soon {c.he} felt better", "too hot to walk"),
    "read": ("{c.he} was ill in bed and very bored", "read to {c.him} from {o.the} all afternoon", "too ill to play"),
    "draw": ("{c.his} sign had been washed away by the rain", "painted a new sign with {o.the}", "too sad to try again"),
}


def rescue(s: Story) -> None:
    """Somebody is in trouble, the thing is what helps, and the help comes back later."""
    opening(s)
    trouble, deed, too = RESCUE[s.thing.use]
    s.writer.env |= {"trouble": trouble, "deed": deed, "too": too}
    set_out(s)
    s.say("{h} put {o.the} into {h.his} {h.bag} and set off.", "As always, {h.he} had {o.the} with {h.him}.", "{h.He} took {o.the} along, just in case.")
    sight(s)
    s.say("{later} {h.he} heard somebody crying {spot1}.", "{suddenly} {h} heard a small voice. It came from somewhere {spot1}.", "When {h.he} came to {spot1.noun}, {h.he} heard a sob.")
    s.para()
    s.say("It was {c.intro}, and {trouble}.", "There sat {c.intro}. {c.He} looked very {sad2}, for {trouble}.")
    s.say('"What is wrong?" asked {h}. "It is {too}," sobbed {c}.', '"Please help me," said {c}. "I have been here since [morning|sunrise|yesterday], and it is {too}."')
    s.say('"Do not worry," said {h}. "{goodidea}"', '{h} thought for a moment. "{goodidea}" {h.he} said.', '"I will help you," said {h}, and {h.he} meant it.')
    s.say("{h.He} {deed}.", "Quickly, {h} {deed}.", "Then {h} {deed}. It was not easy, but {h.he} did not give up.")
    s.say('"{thanks}" said {c}. "{welcome}" said {h}.', '{c} was {happy}. "I will never forget this," {c.he} said.')
    s.fact("problem", "{c} needed help because {trouble}")
    s.fact("helped", "{c}")
    s.para()
    s.say("A few days later, a storm came up while {h} was out alone. The rain fell so hard that {h.he} could not see the path.",
          "Not long after that, {h} slipped {spot2} and got stuck. {h.He} pulled and pulled, but it was no use.",
          "The next week, {h} was walking {spot2} when fog rolled in, thick and white. Soon {h.he} did not know where {h.he} was.")
    s.say("{heart}", '"Is anybody there?" {h} {cried}.', "{h.He} began to feel {scared}.")
    s.say('"I am here!" called a voice {h.he} knew. It was {c}! {c.He} led {h} safely home.',
          "And who should come along? It was {c}! This time it was {c} who [helped|saved] {h}.",
          'Then somebody took {h.him} by the {h.hand}. "Now it is my turn to help you," said {c}.')
    s.fact("helper", "{c}")
    home_again(s)
    moral(s, "kindness always finds its way back", "nobody is too small to help", "whoever helps others is never alone", "a good deed is like a seed that grows")
    closing(s)


def sharing(s: Story) -> None:
    """Two friends want the same thing; a quarrel, a silence, and a way for both."""
    opening(s)
    meet_friend(s)
    set_out(s)
    s.say("{f} came to [play|visit|see {h.him}]. As soon as {f.he} saw {o.the}, {f.his} eyes grew wide.", "{h} was showing {o.the} to {f} {spot1}.")
    s.say('"May I have a turn?" asked {f}. "No," said {h}. "It is mine, and only mine."', '"Please let me hold it," said {f}. But {h} held it behind {h.his} back. "You might break it," {h.he} said.')
    s.say('"You are mean!" {cried} {f}. {f.He} [turned round|stamped {f.his} foot] and went home.', "{f} did not say another word. {f.He} walked away with {f.his} head hanging low.",
          "They both pulled at it, and it fell to the ground. Then they were cross with each other, and {f} went away.")
    s.para()
    s.say("At first {h} was glad. Now {h.he} had {o.the} all to {h.himself}. But {later} it was not much fun any more.",
          "{h} sat down {spot2} with {o.the}. It was very quiet. Nobody laughed, and nobody told {h.him} a [joke|riddle|story].")
    s.say("{sadbody}", "{h.He} missed {f}.", "It is hard to have fun when one is alone.")
    s.say("{e.intro} came by and saw how sad {h.he} was. \"A thing that is shared is worth twice as much,\" {e.he} said.",
          'Then {h.he} met {e.intro}. "What is better," {e.he} asked, "to have a {o} and no friend, or a friend to share it with?"',
          'Just then {e.intro} came by. "Do you know what makes a good thing better?" {e.he} asked. "Sharing it."')
    s.say("{h} [thought about this|thought hard]. Then {h.he} {h.ran} all the way to {f}.", "Now {h} knew what to do. {h.He} took {o.the} and {h.ran} straight to where {f} lived.")
    s.say('"I am sorry," said {h}. "You can have the first turn." {f} {smiled}. "I am sorry too," {f.he} said.',
          '"I was wrong," said {h}. "Let us [take turns|share it]." {f} threw {f.his} arms around {h.him}.')
    s.say("They took turns all afternoon, and it was [twice as much fun|more fun than ever before].", "Together they thought of ten new games to play with {o.the}.")
    s.fact("problem", "{h} did not want to share {h.his} {o}")
    s.fact("helper", "{e}")
    home_again(s)
    moral(s, "sharing makes a good thing better", "a friend is worth more than any {o}", "saying sorry takes courage, but it mends almost anything", "joy grows when it is shared")
    closing(s)


NOISES = [
    ("a strange scratching sound", "a branch that was rubbing against {spot1.noun}", "scratch, scratch, scratch"),
    ("a deep, low moan", "the wind blowing over an empty [bottle|barrel]", "ooooh, ooooh"),
    ("a tapping sound", "an old shutter that knocked in the wind", "tap, tap, tap"),
    ("a loud splash", "a big [fish|frog] that jumped for joy in the moonlight", "splish, splash"),
    ("a rustling sound", "{c.intro} who was looking for something to eat", "rustle, rustle"),
    ("a sad howling", "{c.intro} who had lost {c.his} way", "aroo, aroo"),
    ("a rumbling sound", "{c.intro} who was fast asleep and snoring", "rrrr, rrrr"),
    ("a squeaking sound", "a little gate that needed a drop of oil", "squeak, squeak"),
]


def afraid(s: Story) -> None:
    """A noise in the night, the courage to look, and what it really was."""
    s.hero.trait = s.rng.choice(["shy", "quiet", "gentle", "dreamy", "careful", "thoughtful"])
    sound, source, noise = s.rng.choice(NOISES)
    s.writer.env |= {"sound": sound, "source": source, "noise": noise}
    opening(s)
    s.say("But there was one thing that {h} did not like, and that was the [dark|night].", "{h} was [clever|good at many things], but {h.he} was afraid of the dark.")
    s.para()
    s.say("One night, when the [moon|wind] was high, {h} heard {sound}. \"{noise}!\" it went.", 'One [dark|stormy|windy|cold] night {h} woke up. There was {sound} outside. "{noise}!"')
    s.say("{heart}", "{h.He} pulled the blanket over {h.his} head.")
    s.say('"What if it is a monster?" {h.he} whispered.', '"Who is there?" {h.he} called, but nobody answered.', "The sound came again, a little louder than before.")
    s.para()
    s.say("In the morning {h} told {h.his} friend {f.short}. \"Tonight we will find out together,\" said {f}.", "The next day {h} told {f.intro} about it. \"Let us find out what it is,\" said {f}. \"We will go together.\"")
    s.say("When it was dark, they set out. {h} carried {o.the}, and {f} held {h.his} other {h.hand}.", "That night they waited {spot2}. {h} held {o.the} tight.")
    s.say('"{noise}!" There it was again. It came from somewhere {spot1}.', "They crept closer and closer to {spot1.noun}. The sound grew louder. \"{noise}!\"")
    s.say("{h.His} knees shook, but {h.he} took one step, and then another.", "{h} wanted to run away. Instead, {h.he} took a deep breath and went on.")
    s.say("And what was it? It was only {source}!", "Then they saw it. It was nothing but {source}!")
    if "{c" in source:
        s.say('"Do not be afraid," said {c}. "I did not want to frighten anyone." They took {c.him} home and gave {c.him} {food}.', '"Oh, I am sorry," said {c}. "Did I wake you?" Everyone began to laugh.')
        s.fact("met", "{c}")
    else:
        s.say("They looked at each other and burst out laughing.", '"Is that all?" laughed {h}. "I was afraid of that?"')
    s.fact("problem", "{h} was afraid of the dark and heard {sound}")
    s.fact("helper", "{f}")
    s.fact("found", "{source}")
    home_again(s)
    moral(s, "being brave means being afraid and going on anyway", "many scary things are small when you look at them closely", "fear grows smaller when you share it with a friend", "the dark is only the day with its eyes closed")
    closing(s)


PROJECTS = [
    ("a birthday cake", ("flour", "eggs", "honey"), "baked the cake", "it smelled so good that all the neighbours came", "the cake sank in the middle", "covered the hole with berries"),
    ("a little raft", ("logs", "rope", "a sail"), "tied the logs together", "it floated as lightly as a leaf", "the mast fell over", "tied it with one more knot"),
    ("a tree house", ("boards", "nails", "paint"), "hammered and sawed", "from up there one could see to the end of the world", "the ladder was too short", "added one more step"),
    ("a kettle of soup", ("carrots", "onions", "salt"), "stirred the pot", "there was enough for everyone", "it tasted of nothing at all", "added a pinch of salt"),
    ("a garden", ("seeds", "a spade", "water"), "dug and planted", "soon the first green leaves came up", "the birds ate half of the seeds", "made a funny scarecrow"),
    ("a warm quilt", ("cloth", "thread", "wool"), "sewed the pieces together", "it had all the colours of the rainbow", "one corner came out too short", "sewed on a big red pocket"),
    ("a small bridge", ("stones", "planks", "nails"), "laid plank beside plank", "even the cart could roll over it", "the first plank broke", "took a thicker one"),
    ("a puppet show", ("a curtain", "some puppets", "music"), "practised all week", "everyone clapped and cheered", "the curtain would not open", "made a joke of it"),
    ("a paper lantern", ("paper", "sticks", "glue"), "folded and glued", "it shone like a small moon", "the paper tore", "covered the tear with a paper star"),
]


def making(s: Story) -> None:
    """Something is made for somebody: three things to find, each given for a small kindness."""
    made, (a, b, c), work, result, setback, remedy = s.rng.choice(PROJECTS)
    reason = s.rng.choice(["It was almost {f}'s birthday.", "{f} had been ill all week.", "{f} had just moved to a new home.", "Winter was coming, and {f} had nothing ready.", "{f} had helped {h.him} so often."])
    s.writer.env |= {"made": made, "a": a, "b": b, "d": c, "work": work, "result": result, "setback": setback, "remedy": remedy}
    opening(s, with_thing=False)
    meet_friend(s)
    set_out(s)
    s.say(f"{reason} \"I will make {{made}} for {{f.him}},\" thought {{h}}. \"It will be a surprise!\"", f"{reason} {{h}} wanted to surprise {{f.him}} with {{made}}.")
    s.say("For that {h.he} needed {a}, {b} and {d}. But {h.he} had none of them.", "{h.He} needed three things: {a}, {b} and {d}.")
    s.para()
    s.say("First {h.he} went to {e.intro}. \"I will give you {a},\" said {e}, \"if you help me [sweep my floor|carry my firewood|find my glasses|pick my apples].\" {h} was glad to help.",
          "{h.He} asked {e.intro}. \"Of course you may have {a},\" {e.he} said. \"But first, could you help me to [water my flowers|mend my fence|hang up my washing|peel the potatoes]?\" {h} did it at once.")
    s.say("Next {h.he} met {c.short}. {c} had {b} to spare. \"Sing me a song, and you can have {b},\" said {c}. So {h} sang {h.his} best song.",
          "Then {h.he} came to {spot1.noun}, where {c.intro} was sitting. \"Take {b},\" said {c}. \"You once [shared your lunch with me|showed me the way|told me a good story].\"")
    s.say("Only {d} was missing. {h} looked everywhere, and at last {h.he} found {d} {spot2}.", "But where could {h.he} get {d}? In the end {h.he} traded {o.a} for {d}.", "And {d}? {h} found {d} at home, at the back of the cupboard.")
    s.para()
    s.say("Then {h} went to work. {h.He} {work} until {h.his} {h.hands} ached.", "All afternoon {h} {work}.")
    s.say("But oh dear, {setback}! {sadbody}", "Then something went wrong: {setback}. \"{ohno}\" said {h}.")
    s.say("{h.He} did not give up. {h.He} {remedy}, and it looked better than before.", '"That is no reason to stop," said {c}, who had come to watch. So {h} {remedy}.')
    s.say('In the evening {f} came by. "Surprise!" {cried} {h}. {f} could not believe {f.his} eyes, for {result}.', "When {f} saw it, {f.he} was speechless, for {result}. \"For me?\" {f.he} asked. \"For you,\" said {h}.")
    s.fact("made", "{made}")
    s.fact("problem", "{h} wanted to make {made} for {f}")
    s.fact("helper", "{e} and {c}")
    home_again(s)
    moral(s, "a gift made by hand comes from the heart", "a mistake is not the end", "many small helpers can do great things", "it is as nice to give as to get")
    closing(s)


JOURNEY = ["to see the [great waterfall|tallest tree in the world|sea for the first time|rainbow from close by|lights of the far city]", "to bring {o.a} to {h.his} [grandmother|grandfather|aunt|cousin]", "to find out where the [river|wind|sun] comes from", "to visit {h.his} cousin on the other side of {p}"]


def journey(s: Story) -> None:
    """A way with an obstacle that somebody's skill overcomes."""
    opening(s, with_thing=False)
    meet_friend(s)
    goal = s.writer.expand(s.rng.choice(JOURNEY))
    s.writer.env["goal"] = goal
    s.para()
    s.say("{morning}, {h} decided {goal}. \"May I come with you?\" asked {f}. \"Of course,\" said {h}.", "{h} had [long|always] wanted {goal}, and {morning}, {h.he} and {f} set out.")
    s.say("They packed {food} and {o.a}.", "{h} carried {o.a}, and {f} carried the lunch.") if "bring" not in goal else s.say("They packed the present and a bag full of [apples|nuts|biscuits].")
    sight(s, 0.8)
    chat_between(s)
    s.para()
    s.say("{later} they came to {obstacle}. There was no way around it.", "Around noon they stopped. In front of them was {obstacle}.")
    s.say('"What shall we do now?" asked {f}. {h} did not know.', '"We will have to turn back," sighed {f}. But {h} shook {h.his} head.')
    s.say("Just then {c.intro} came along. \"Perhaps I can help,\" said {c}.", '"Hello down there!" called a voice. It was {c.intro}.')
    s.writer.env["e2"] = s.writer.env["c"]
    skill = SKILLS[s.writer.env["c"].skill].replace("{e.", "{c.")
    s.say("{c.He} " + skill + ". {later} {c.he} had found a safe way to the other side.", "{c} " + skill + ", and showed them where it was safe to cross.")
    s.say('"{thanks}" said {h}. "Would you like to come along?" And so there were three of them.', "They thanked {c} and gave {c.him} half of their lunch.")
    s.para()
    if "bring" in goal or "visit" in goal:
        s.say("At last they saw the little house with its [red|blue|green] door. The door flew open. \"You have come all this way!\" There were hugs for everyone, and {food} too.",
              "When they arrived, there was great joy. They sat down together, ate {food}, and told the whole story from the beginning.")
    else:
        s.say("When they got there at last, they stood still and said nothing for a long time. It was more beautiful than they had dreamed.",
              "And then, behind the last bend, they saw it. \"Oh!\" whispered {h}. It was well worth the long walk.")
    s.fact("problem", "{h} wanted {goal}, but there was {obstacle} in the way")
    s.fact("helper", "{c}")
    home_again(s)
    moral(s, "a long way is shorter with a friend", "every path begins with one step", "it is good to ask for help", "the best part of a journey is the company")
    closing(s)


def disobey(s: Story) -> None:
    """A warning not heeded, what comes of it, a rescue, and an honest sorry."""
    s.hero.trait = s.rng.choice(["curious", "lively", "stubborn", "playful"])
    opening(s)
    s.para()
    s.say('"You may play outside," said {h.his} [mother|father], "but do not go near {spot1.noun}. It is not safe there."', 'Every morning {h.his} [mother|grandmother] said the same thing: "Stay away from {spot1.noun}, {h}!"')
    s.say('"Yes, yes," said {h}. But {h.he} was hardly listening.', "{h} promised. But a promise is easily forgotten when the sun is shining.")
    s.say("{morning}, {h} saw a [blue butterfly|golden beetle|rolling apple|shining feather|white moth]. {h.He} followed it farther and farther, all the way to {spot1.noun}.",
          '{morning}, {h} thought, "One little look cannot hurt." So {h.he} {h.ran} off toward {spot1.noun}.')
    sight(s, 0.3)
    s.para()
    s.say("{suddenly} the ground gave way, and {h} slid down into a hole. It was too deep to get out.", "{suddenly} {h} slipped, and one foot got stuck between two stones. {h.He} could not move at all.", "But then {h.he} turned round, and everything looked the same. {h.He} was lost.")
    s.say("{heart}", '"Help!" {cried} {h}. "Is anyone there?"', "{h.He} wished that {h.he} had listened.")
    if s.thing.use in ("sound", "light", "shine"):
        how = {"sound": "made a loud sound with {o.the}", "light": "held up {o.the} so that its light could be seen", "shine": "turned {o.the} to the sun so that it flashed"}[s.thing.use]
        s.say(f"Then {{h.he}} remembered {{o.the}}. {{h.He}} {how}, again and again.")
        s.say("{f.intro} noticed it and came as fast as {f.he} could.")
    else:
        s.say("Luckily {f.intro} was passing by and heard {h.him}.", "It was {f.intro} who heard {h.him} at last.")
    s.say("{f} [called for help|fetched a long branch|ran for help], and {later} {h} was free again. [Luckily {h.he} was not hurt|{h.He} had only a small scratch].", '"Hold on!" said {f}. Bit by bit, {f.he} helped {h.him} out.')
    s.para()
    s.say("At home {h} told the truth. \"I did not listen, and I am sorry,\" {h.he} said.", 'With a red face {h} went home. "I broke my promise," {h.he} said. "I am sorry."')
    s.say("{h.His} mother hugged {h.him} for a long time. \"I am just glad that you are safe,\" she said.", "\"We all make mistakes,\" said {h.his} father, \"but we can learn from them.\" Then there was {food}.")
    s.fact("problem", "{h} went to {spot1.noun} although {h.he} had been told not to")
    s.fact("helper", "{f}")
    s.maybe(0.5, "When {evening}, {h} was fast asleep.")
    moral(s, "a warning is there for a reason", "it is wise to listen to those who love us", "a promise should be kept", "telling the truth makes the heart light")
    closing(s)


def race(s: Story) -> None:
    """A proud rival, a contest, and a winner who is not the fastest."""
    opening(s, with_thing=False)
    s.say("Nearby lived {f.intro}, who was very proud. \"Nobody is [faster|better] than me,\" {f.he} said every day.", "{h} had a neighbour, {f.intro}. {f} liked to boast. \"I always win,\" {f.he} said.")
    set_out(s)
    s.say("There was to be a great race {p.of}, from {spot1.noun} to {spot2.noun}. The prize was {o.a}.", "{e.intro} announced a race. \"Whoever reaches {spot2.noun} first will win {o.a},\" {e.he} said.")
    s.say('"You cannot win," laughed {f}. "I will do my best," said {h}.', '"Why do you even try?" asked {f}. {h} only smiled. "Because it is fun," {h.he} said.')
    s.say("Everyone came to watch. \"Ready, steady, go!\" And off they went.", '"One, two, three, go!" called {e}.')
    s.para()
    s.say("At once {f} was far ahead. {h} did not mind. {h.He} kept going, step by step.", "{f} shot forward like an arrow, and {h} was soon far behind.")
    ending = s.rng.choice(["nap", "help"])
    if ending == "nap":
        s.say("{f} looked back and saw nobody. \"I have plenty of time,\" {f.he} thought, and lay down {spot3}. Soon {f.he} was fast asleep.", "Half way, {f} saw a bush full of sweet berries. {f.He} stopped to eat one, and then another, and then a hundred more.")
        s.say("{h} passed by on quiet feet and went on and on. When {f} looked up, {h} was already crossing the line!", "Meanwhile {h} went on without a rest. {f} jumped up and ran, but it was too late. {h} had won!")
        s.say("\"I was too proud,\" said {f}. \"Well done, {h}.\" And {h} [shared the prize with {f.him}|shook {f.his} {f.hand}].", "{h} was given {o.the}. \"Next time we will run side by side,\" {h.he} said to {f}, and {f} {smiled}.")
        lessons = ("slow and steady can win the race", "it is better to try than to boast", "you should never give up too early")
    else:
        s.say("{suddenly} there was a cry {spot3}. {f} had fallen and hurt {f.his} foot.", "But at {spot3.noun} {f} tripped over a root and could not get up.")
        s.say("{h} could have run past and won. But {h.he} stopped. \"Lean on me,\" {h.he} said.", '"Go on, you can win," said {f}. "Not without you," said {h}, and {h.he} helped {f.him} up.')
        s.say("Together they limped over the line, last of all. But everyone cheered for them louder than for the winner, and {e} gave {o.the} to {h}.", 'They came in last, arm in arm. "{h} has won something greater than a race," said {e}, and gave {h.him} {o.the}.')
        lessons = ("helping is more important than winning", "a kind heart is the best prize", "there are things more important than being first")
    s.fact("problem", "{h} ran a race against {f}")
    s.fact("prize", "{o.a}")
    home_again(s)
    moral(s, *lessons)
    closing(s)


PLANTS = [("seed", "sunflower", "as tall as the roof"), ("seed", "pumpkin", "as big as a cart"), ("acorn", "oak tree", "as high as {h.his} knee"), ("bean", "bean plant", "up to the window"), ("bulb", "tulip", "as red as the evening sky"), ("seed", "melon", "as round as the moon"), ("cherry stone", "cherry tree", "taller than {h.him}"), ("seed", "strawberry plant", "full of sweet red berries")]


def planting(s: Story) -> None:
    """A seed, impatience, weather, and what patience gives."""
    seed, plant, size = s.rng.choice(PLANTS)
    s.writer.env |= {"seed": seed, "plant": plant, "size": size}
    opening(s, with_thing=False)
    set_out(s)
    s.say("{e.intro} gave {h.him} a [tiny|small|round|brown] {seed}. \"Plant it and take care of it,\" {e.he} said, \"and you will see a wonder.\"", "{h} found a [tiny|small|strange] {seed} {spot1}. \"What will you be one day?\" {h.he} asked it.")
    s.say("{h} dug a little hole {spot2}, put the {seed} in, and covered it with earth.", "{h.He} planted it {spot2} and gave it water from {o.a}." if s.thing.noun in ("bucket", "jar", "cup") else "{h.He} planted it {spot2} and gave it plenty of water.")
    s.say("The next morning {h.he} {h.ran} to look. There was nothing but earth.", "Then {h.he} sat down and waited. Nothing happened.")
    s.para()
    s.say('"Why does it not grow?" {h} asked {f.short}. "Maybe you should sing to it," said {f}. So they sang to it every [evening|morning].', "{f.intro} came by and laughed. \"You have to be patient,\" {f.he} said. \"Good things take time.\"")
    s.say("One day passed, then two, then a whole week.", "The sun shone, the rain fell, and the days went by.", "On Monday it rained, on Tuesday the sun shone, and on Wednesday the wind blew.")
    s.say("{h} wanted to dig it up to see what was wrong, but {f} stopped {h.him} just in time.", "{h} almost gave up. But every day {h.he} watered it all the same.", "Once a storm came, and {h} ran out at night to cover the little place with {h.his} own coat.")
    s.para()
    s.say("And then, one morning, there was a tiny green tip! {gladbody}", '"Come quickly!" {cried} {h} one morning. A small green leaf was looking out of the earth.')
    s.say("It grew and grew. By the end of summer it was a {plant}, {size}.", "Week after week it grew, until there stood a beautiful {plant}, {size}.")
    s.say("Everyone came to admire it. {h} gave each of them [a seed|a piece|a leaf] to take home.", "{h} and {f} sat beside it and were {happy}.")
    s.fact("problem", "{h} had to wait for a {seed} to grow")
    s.fact("grew", "a {plant}")
    s.fact("helper", "{f}")
    home_again(s)
    moral(s, "good things take time", "whoever cares for small things will see great ones", "patience is a kind of magic", "you must not give up too soon")
    closing(s)


def honesty(s: Story) -> None:
    """Something of somebody else's is broken and hidden; the truth mends more than the thing."""
    opening(s, with_thing=False)
    meet_friend(s)
    s.say("{f} had {o.a} and was very proud of it, for {o.detail}.")
    set_out(s)
    s.say('"I have to go home for lunch," said {f}. "Will you look after my {o}?" {h} promised to be careful.', "{f} lent {h} {o.the} for one day. \"Please take good care of it,\" {f.he} said.")
    s.say("But {h} [ran|jumped|danced] about {spot1}, tripped, and fell. Crack! {o.the} was broken.", "{h} wanted to try something new with it. Then it slipped out of {h.his} {h.hands}, fell on a stone, and broke.")
    s.say('"{ohno}" said {h}. {heart}', "{h} stared at the pieces. {sadbody}")
    s.say("{h.He} hid the pieces {spot2}, where nobody would find them.", "Quickly {h.he} pushed the pieces out of sight {spot2} and went home.")
    s.para()
    s.say('"Where is my {o}?" asked {f} the next day. "I do not know," said {h}. "Maybe somebody took it."', 'When {f} asked for {o.the}, {h} said, "The wind must have taken it." It was a lie.')
    s.say("That night {h} could not sleep. The lie sat on {h.his} chest like a heavy stone.", "But {h.his} stomach hurt, and not even {food} tasted good.")
    s.say("{h.His} grandmother noticed. \"The truth is sometimes hard to say,\" she said, \"but it gets harder every day you wait.\"", '"Something is troubling you," said {e.intro}. "Tell the truth, and it will let you go."')
    s.para()
    s.say("So {h} fetched the pieces from {spot2.noun} and took them to {f}. \"I broke it, and then I lied,\" {h.he} said. \"I am very sorry.\"",
          'In the morning {h} went to {f}. "It was me," {h.he} said. "I broke your {o}, and I was afraid to tell you."')
    s.say("{f} was quiet for a moment. \"I am sad about my {o},\" {f.he} said, \"but I am glad that you told me.\"", '"I was angry," said {f}, "but a true friend is worth more than a {o}."')
    s.say("Together they mended it with glue and [string|a bit of wire|a red ribbon]. One could still see the crack, but they liked it even better that way.", "They spent the whole afternoon mending it, and when {evening}, it was almost as good as new.")
    s.fact("problem", "{h} broke {f}'s {o} and lied about it")
    s.fact("owner", "{f}")
    home_again(s)
    moral(s, "the truth makes the heart light", "a lie grows heavier every day", "it takes courage to say sorry", "friends can forgive each other")
    closing(s)


def newcomer(s: Story) -> None:
    """Somebody new and alone, a first step, and a friend for everyone."""
    opening(s)
    set_out(s)
    s.say("{h.He} saw that somebody new had moved in {spot1}. It was {f.intro}.", "A stranger had come {p.to}. It was {f.intro}, and nobody knew {f.him}.")
    s.say("{f} sat all alone {spot2} and looked at {f.his} feet.", "The others were playing, but {f} only watched from far away.")
    s.say('"{f.He} looks strange," whispered the others. "{f.He} talks in a funny way."', "\"Why doesn't {f.he} come and play?\" asked the others. \"Maybe {f.he} is proud.\"", "Nobody had asked {f.him} to play.")
    s.para()
    s.say("{h} remembered how it feels to be alone. {h.He} took {o.the} and walked over.", "But {h} thought, \"Maybe {f.he} is only shy.\" So {h.he} took {o.the} and went to {f.him}.")
    s.say('"{greeted}," said {h}. "I am {h}. Would you like to see my {o}?"', '"{greeted}! My name is {h}," said {h}. "Look what I have."')
    s.say("{f} looked up. \"{o.detail}!\" said {h}. Slowly, {f} began to smile.", '"It is beautiful," said {f} very softly. "At home I had a {o} too." {f.His} eyes were shining.')
    s.say("{f} showed {h.him} how to [whistle with a blade of grass|fold a bird out of a leaf|walk on two hands|make shadow animals|count in another language]. {h} had never seen anything like it.", "It turned out that {f} knew the best [games|stories|songs|riddles] in the world.")
    s.para()
    s.say("{later} the others came closer, one by one. \"May we play too?\" they asked.", '"Come here, everybody!" {cried} {h}. "{f} is going to teach us a new game!"')
    s.say("They played until {evening2}. Nobody thought that {f} was strange any more.", "Soon they were all laughing together, and nobody laughed louder than {f}.")
    s.fact("problem", "{f} was new and had no friends")
    s.fact("helped", "{f}")
    home_again(s)
    moral(s, "a friendly word can change somebody's day", "a stranger is a friend you have not met yet", "everyone is good at something", "it takes only one step to make a friend")
    closing(s)


def swaps(s: Story) -> None:
    """One swap leads to the next, and in the end everyone has what they need."""
    names = [t for t in THINGS if t != s.thing.noun]
    x, y = (THINGS[n].with_one_adjective(s.rng) for n in s.rng.sample(names, 2))
    s.writer.env |= {"x": x, "y": y}
    opening(s)
    s.para()
    s.say("One day {h.his} [mother|grandmother] fell ill and wished for nothing but {food2}. But the cupboard was empty.", "The winter was long, and there was nothing left to eat but a dry crust.")
    s.say("So {h} took the only thing {h.he} had, {o.the}, and went out into the world.", '"I will swap my {o} for something to eat," said {h}, though it made {h.him} {sad2}.')
    s.para()
    s.say("{spot1} {h.he} met {f.intro}, who was carrying {x.a}. \"I have wanted a {o} all my life,\" said {f}. \"Will you swap?\" {h} nodded.",
          "First {h.he} met {f.intro}. \"A {o}!\" said {f}. \"Just what I need. I will give you my {x} for it.\" So they swapped.")
    s.say("Now {h} had {x.a}. A little farther on sat {c.intro}. \"If only I had a {x}!\" sighed {c}. {h} gave it to {c.him}, and {c} gave {h.him} {y.a} in return.",
          "With {x.a} under {h.his} arm, {h} walked on. {spot2} {h.he} met {c.intro}, who looked at it with longing. \"Take my {y} for it,\" said {c}.")
    s.say("At last {h} came to {e.intro}. \"That {y} was mine!\" {cried} {e}. \"I lost it years ago. Come in, come in!\"", "In the evening {h.he} knocked at the door of {e.intro}. \"What a fine {y}!\" said {e}. \"I have been looking for one everywhere.\"")
    s.say("And for it {e} gave {h.him} a basket full of food: {food}, and more besides.", "{e} filled a whole cart with food for {h.him}, and put {food} on top.")
    s.para()
    s.say("On the way home {h.he} met {f} again. \"I have played with it all day,\" said {f}. \"But I think that it misses you.\" And {f.he} gave {h.him} {o.the} back.", "When {h} came home, there was a parcel at the door. In it lay {o.the}, with a note from {f}: \"For a good friend.\"")
    s.fact("problem", "{h} had to swap {h.his} {o} for something to eat")
    s.fact("swapped", "first {x.a}, then {y.a}")
    s.fact("helper", "{e}")
    s.say("That evening everyone ate until they were full.", "Nobody went to bed hungry that night.")
    moral(s, "what you give away often comes back", "everyone needs something different", "a little can become a lot")
    closing(s)


def mystery(s: Story) -> None:
    """Something vanishes night after night; they watch, and the thief is somebody hungry."""
    what = s.rng.choice(["apples", "carrots", "pies", "eggs", "nuts", "cookies", "strawberries", "cabbages", "plums"])
    s.writer.env["what"] = what
    opening(s)
    meet_friend(s)
    s.para()
    s.say("{morning}, {h} found that some of {h.his} {what} were gone. The next morning even more were missing.", "Something strange was going on. Every night a few of {h.his} {what} disappeared.")
    s.say('"Who could it be?" asked {h}. "Let us look for footprints," said {f}.', '"A thief!" said {f}. "We must catch him." "First we must find out who it is," said {h}.')
    s.say("They found [small|tiny|strange|muddy] footprints that led to {spot1.noun} and then stopped.", "There were crumbs all the way to {spot1.noun}, but no thief.")
    s.para()
    s.say("That night they hid {spot2} and waited. {h} had brought {o.the}.", "When it grew dark, they hid {spot2}. {h} held {o.the} and tried not to yawn.")
    s.say("The moon rose. An owl called. {f} was just falling asleep when there was a [rustle|crunch|patter].", "For a long time nothing happened. Then {h} heard soft steps.")
    if s.thing.use == "light":
        s.say("{h} lit {o.the}. In the bright light stood {c.intro}, with {c.his} mouth full.")
    else:
        s.say('"Stop!" {cried} {h}. There, in the moonlight, stood {c.intro}, with {c.his} mouth full.')
    s.say('"Please do not be angry," said {c}. "My [little ones|brothers and sisters] are so hungry, and I did not know whom to ask."', '{c} began to cry. "I have not eaten for days," {c.he} sobbed. "I am so sorry."')
    s.say("{h} and {f} looked at each other. They were not angry any more.", "{h} felt that {h.his} anger melted like snow in the sun.")
    s.para()
    s.say('"You only had to ask," said {h}. "From now on you will help us in the garden, and there will be enough for all of us."', '"Nobody should be hungry," said {h}. {h.He} filled a bag with {what} and gave it to {c}.')
    s.say("And so it was. {c} turned out to be the best [gardener|helper|cook] of all.", "After that nothing was ever missing again, and there were three friends instead of two.")
    s.fact("problem", "somebody took {h}'s {what} at night")
    s.fact("thief", "{c}")
    s.fact("helper", "{f}")
    home_again(s)
    moral(s, "it is good to ask why before you are angry", "nobody should be ashamed to ask for help", "a thief may be somebody in need", "kindness solves more than anger")
    closing(s)


LOST_WAY = {
    "light": "{h} lit {o.the}. Its light fell on a row of white stones, and the stones led them home",
    "sound": "{h} made a loud sound with {o.the}, three times. Far away somebody answered, and they walked toward the voice",
    "tie": "{h} tied {o.the} to a branch so that they would not walk in a circle. That way they soon found the path again",
    "find": "{h} looked carefully at {o.the}. Now they knew which way to go",
    "shine": "{h} held up {o.the}. It caught the last ray of the sun, and somebody far away saw the flash and came to fetch them",
    "warm": "{h} spread {o.the} over both of them, so that they stayed warm until the sun rose and they could see the path",
    "cover": "{h} opened {o.the}, and they sat under it, warm and dry, until the weather cleared and they could see the path",
    "carry": "{h} saw the tracks that {o.the} had left on the way. They had only to follow them back",
    "treasure": "{h} held {o.the} tight and remembered that they had passed {spot2.noun} with the wind on their faces. So now they walked with the wind at their backs",
}


def lost_way(s: Story) -> None:
    """Two are surprised by fog, snow or dusk, and find the way with the thing they brought."""
    opening(s)
    meet_friend(s)
    weather = s.rng.choice([("fog", "a thick white fog came up"), ("rain", "dark clouds covered the sky, and it began to pour"), ("night", "it grew dark much earlier than they had expected"), ("wind", "a great wind blew up and covered the path with leaves")] if s.place.key != "snow" else [("snow", "it began to snow so thickly that they could not see their own feet")])
    s.writer.env["change"] = weather[1]
    set_out(s)
    s.say('"Let us go to {spot2.noun}," said {f}. "I have never been so far." "I will bring my {o}," said {h}.', "{h} and {f} wanted to gather [berries|nuts|flowers|pretty stones] {spot2}. {h} took {o.the} along.")
    sight(s, 0.5)
    s.say("They [played and played|talked and laughed] and forgot the time.", "They had so much fun that they did not look at the sky.")
    s.para()
    s.say("{suddenly} {change}.", "Then {change}.")
    s.say('"Which way is home?" asked {f} in a small voice.', '"I cannot see the path," said {f}. {f.He} began to tremble.')
    s.say("They went left, and they came to {spot1.noun}. They went right, and they came to {spot1.noun} again. They were going round in circles!", "They walked and walked, but nothing looked as it should.")
    s.say("{heart}", "Now {h} was {scared} too, but {h.he} did not show it.")
    s.say('"Do not be afraid," said {h}. "We have my {o}."', '"{goodidea}" said {h}. "The {o}!"')
    s.say(LOST_WAY[s.thing.use] + ".")
    s.para()
    s.say("At home everyone was waiting. There were blankets, and hugs, and {food}.", '"There you are!" {cried} {e.intro}. "We were so worried!"')
    s.say('"We were never really lost," said {f}. "{h} was with me."', '"Your {o} saved us," said {f}. "No," said {h}, "we saved each other."')
    s.fact("problem", "{h} and {f} lost their way")
    s.fact("helper", "{h}")
    moral(s, "a calm head finds the way", "it is good to be prepared", "two are braver than one", "you should always keep an eye on the sky")
    closing(s)


def dream_job(s: Story) -> None:
    """Somebody tries several things, is good at none, and finds the one that fits."""
    opening(s, with_thing=False)
    s.say("But {h} was not happy. Everyone {p.of} could do something special, only {h.he} could not.", '"What am I good at?" {h} often asked, but nobody knew.')
    set_out(s)
    s.say("First {h.he} tried to [bake|sing|paint] like {f.short}. It went wrong from beginning to end.", "{f.intro} showed {h.him} how to [juggle|dance|swim on {f.his} back], but {h} only [fell over|got dizzy].")
    s.say('"Never mind," said {f}. "Try something else."', '"Everybody has to look for it," said {f}. "I did too."')
    s.say("Then {h.he} asked {c.intro}. {c} taught {h.him} to [make baskets|play the fiddle|catch fish|tell the weather]. That did not work either.", "After that {h.he} went to {c.short} and tried to [build a wall|tell jokes|walk on a rope]. Everyone laughed, and {h} {h.ran} away.")
    s.para()
    s.say("{h} sat down {spot1}. {sadbody}", "{h.He} hid {spot1} and did not want to see anyone.")
    s.say("Then {h.he} heard somebody weeping. It was a small [ant|beetle|chick|mouse child] that had lost its mother. {h} sat down beside it and listened to everything it had to say.", "A tiny [duckling|ladybird|caterpillar] sat there too, and it was very unhappy. {h} listened, and asked, and listened again.")
    s.say('"I feel much better now," said the little one. "You are the best listener in the world."', "After a while the little one stopped crying. \"Nobody has ever listened to me like that,\" it said.")
    s.say("{e.intro} had seen it all. \"Now you know what you are good at,\" {e.he} said. \"There are many who can talk, but few who can listen.\"", "{h} looked up. So that was it! Listening was what {h.he} could do better than anyone.")
    s.say("From then on, whoever had a worry came to {h}. And {h} was {happy}.")
    s.fact("problem", "{h} did not know what {h.he} was good at")
    s.fact("found", "that {h.he} was a very good listener")
    home_again(s)
    moral(s, "everyone has a gift of their own", "a good listener is worth more than gold", "it is better to be yourself than to be like somebody else")
    closing(s)


Plot = Callable[[Story], None]
PLOTS: dict[str, tuple[Plot, frozenset[str] | None]] = {  # with the uses a thing must have, if any
    "lost": (lost_thing, frozenset({"light", "sound", "tie", "warm", "hold", "find", "treasure", "toy", "wear", "cover", "dig", "shine", "read", "draw"})),
    "rescue": (rescue, frozenset(RESCUE)),
    "sharing": (sharing, frozenset({"toy", "treasure", "sound", "wear", "find", "shine", "read", "draw", "carry", "light"})),
    "afraid": (afraid, frozenset({"light", "toy", "warm", "reach", "sound", "treasure", "cover", "tie"})),
    "making": (making, frozenset({"treasure", "toy", "wear", "hold"})),
    "journey": (journey, None),
    "disobey": (disobey, None),
    "race": (race, frozenset({"treasure", "toy", "sound", "wear", "shine", "carry", "read", "hold"})),
    "planting": (planting, frozenset({"hold", "dig"})),
    "honesty": (honesty, frozenset({"toy", "sound", "light", "shine", "hold", "cover", "reach", "carry", "find"})),
    "newcomer": (newcomer, frozenset({"toy", "treasure", "sound", "find", "shine", "wear", "draw", "read", "carry"})),
    "swaps": (swaps, None),
    "mystery": (mystery, None),
    "lost_way": (lost_way, frozenset(LOST_WAY)),
    "gift": (dream_job, frozenset({"treasure"})),
}
THEMES = {  # how somebody may ask for a plot
    "lost": ["losing something", "finding something that was lost", "looking carefully"],
    "rescue": ["kindness", "helping others", "being kind"],
    "sharing": ["sharing", "learning to share", "friendship"],
    "afraid": ["being brave", "being afraid of the dark", "courage", "a strange noise"],
    "making": ["a surprise", "making a gift", "not giving up"],
    "journey": ["a long journey", "an adventure", "a trip"],
    "disobey": ["listening", "keeping a promise", "a mistake"],
    "race": ["a race", "winning and losing", "being proud"],
    "planting": ["patience", "a seed", "growing a plant"],
    "honesty": ["telling the truth", "honesty", "a lie", "saying sorry"],
    "newcomer": ["making a new friend", "somebody new", "being shy"],
    "swaps": ["swapping things", "trading", "giving"],
    "mystery": ["a mystery", "a thief", "something that vanished"],
    "lost_way": ["getting lost", "finding the way home", "a storm"],
    "gift": ["finding out what one is good at", "a good listener", "being different"],
}


def plan(rng: random.Random, want: Request) -> Story:
    """Chooses cast, place, thing and plot, as far as ``want`` leaves them open."""
    taken: set[str] = set()
    place = PLACES[want.place] if want.place else None
    if want.hero is None:
        human = rng.random() < 0.42
    else:
        human = want.hero in ("girl", "boy")
    if place is None:
        options = list(PLACES) if human or want.hero is None else list(SPECIES[want.hero].places)
        if rng.random() < 0.1:
            options = list(PLACES)
        place = PLACES[rng.choice(options)]
    if human:
        hero = child(rng, taken, "hero", want.name, want.hero)
    else:
        hero = animal(rng, taken, "hero", want.hero, place.key, want.name)
    if want.friend:
        friend = child(rng, taken, "friend", None, want.friend) if want.friend in ("girl", "boy") else animal(rng, taken, "friend", want.friend)
    elif human and rng.random() < 0.45:
        friend = child(rng, taken, "friend")
    else:
        friend = animal(rng, taken, "friend", None, place.key)
    other = animal(rng, taken, "other", None, place.key)
    plots = [want.plot] if want.plot else list(PLOTS)
    if want.thing:
        thing = (THINGS | MORE_THINGS)[want.thing].with_one_adjective(rng)
        fits = [p for p in plots if PLOTS[p][1] is None or thing.use in PLOTS[p][1]]
        plot = rng.choice(fits or ["journey", "swaps", "mystery"])
    else:
        plot = rng.choice(plots)
        uses = PLOTS[plot][1]
        pool = MORE_THINGS if rng.random() < 0.15 else THINGS
        fitting = [t for t in pool.values() if uses is None or t.use in uses] or [t for t in THINGS.values() if t.use in uses]
        thing = rng.choice(fitting).with_one_adjective(rng)
    old = elder(rng, hero, taken, related=plot not in ("swaps", "race", "making"))
    picked = [Spot(*spot) for spot in rng.sample(place.spots, 5)]
    env: dict[str, object] = dict(FRAGMENTS)
    env |= {"h": hero, "f": friend, "c": other, "e": old, "o": thing, "p": _PlaceText(place), "like": LIKES, "gift": GIFTS, "sight": list(place.sights),
            "sight2": list(place.sights), "sad2": FRAGMENTS["sad"], "food2": FRAGMENTS["food"], "evening2": ["the sun went down", "the stars came out", "it was time for bed", "it grew dark", "the moon rose"], "obstacle": place.obstacle}
    env["any"] = list(THINGS) + list(MORE_THINGS)
    env |= {f"spot{i + 1}": spot for i, spot in enumerate(picked)}
    env["spot3b"] = picked[4]
    writer = Writer(rng, env)
    story = Story(rng, hero, friend, old, place, thing, plot, writer, picked)
    story.short = rng.random() < 0.25
    return story


class _PlaceText:
    """A place as templates print it, with its article phrases."""

    def __init__(self, place: Place) -> None:
        self.a, self.the, self.inside, self.of = place.a, place.the, place.inside, place.of
        self.to = "to " + place.the
        self.in_a = ("on " if place.inside.startswith("on ") else "in ") + place.a

    def __str__(self) -> str:
        return self.the


def tell(rng: random.Random, want: Request | None = None) -> Story:
    """A whole story."""
    story = plan(rng, want or Request())
    PLOTS[story.plot][0](story)
    facts = story.facts
    text = story.text()
    if story.friend.name in text and story.plot in ("lost", "sharing", "afraid", "making", "journey", "mystery", "lost_way"):
        facts["friend"] = story.friend.name
        facts["friend_kind"] = story.friend.kind
    if story.thing.noun in text:
        facts["thing"] = story.thing.a
    facts |= {"hero": story.hero.name, "kind": story.hero.kind, "place": story.writer.expand(story.place.inside)}
    return story


if __name__ == "__main__":
    import sys

    source = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 3):
        told = tell(source)
        print(f"--- {told.plot}\n{told.text()}\n{told.facts}\n")
