"""Who and what the stories are about: characters, places and things, with what each can do.

A plot asks for what it needs by property ("something that gives light", "somebody who can dig"),
so that what happens in a story follows from who is in it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

GIRLS = """Mia Lily Anna Zoe Ella Rosa Nora Ivy Clara Maya Sofia Emma Lucy Amira Hana Priya Leila Greta
Nina Tara Olive Ruby Freya Alice June Yuki Marta Ines Elsie Daisy Molly Sara Aisha Wren Juno Thea Kira
Lena Mabel Hazel Pia Nadia Flora Edith Tilly Ada Iris Esme Bella Lola Mina Dora Kate Rita Vera Zara""".split()
BOYS = """Ben Tom Leo Max Sam Noah Oscar Finn Theo Omar Kofi Ravi Hugo Felix Jack Eli Milo Arthur Jonas
Pablo Diego Emil Anton Yusuf Kenji Luca Mateo Owen Peter Henry Toby Idris Nils Otto Rafi Simon Tariq
Walter Adam Bilal Caleb Dan Ezra Frank George Harry Ivan Jacob Karl Louis Mark Ned Paul Ralph Tim Will""".split()
ANIMAL_NAMES_SHE = """Poppy Clover Bramble Willow Pebble Dot Hazelnut Maple Fern Biscuit Honey Misty Petal
Snowdrop Nutmeg Marigold Tansy Pearl Luna Cricket Violet Breeze Dewdrop Plum Sorrel Bluebell Twinkle
Coco Ginger Sage Tulip Velvet Minnow Saffron Juniper Tip Cinnamon Primrose Pansy Echo""".split()
ANIMAL_NAMES_HE = """Pip Rusty Bruno Hop Barnaby Patch Scout Thistle Fudge Acorn Button Monty Bumble Tuft
Pepper Oakley Flint Burr Chester Dusty Humphrey Rowan Sparky Wilbur Basil Nibbles Ziggy Pickle Rufus
Mossy Bracken Toffee Duncan Rollo Cedar Hobbs Moss Jasper Tumble Waddle""".split()


@dataclass(frozen=True)
class Species:
    """What a kind of animal is like: where it sleeps, how it hurries, what it can do."""

    kind: str
    home: str
    ran: str
    skill: str
    adjectives: str
    hand: str = "paw"
    places: tuple[str, ...] = ("forest", "hills", "river", "meadow")


_WILD = ("forest", "hills", "meadow", "river")
_FARM = ("farm", "village", "meadow", "garden")
_HOT = ("jungle", "river", "island")
_COLD = ("snow", "seaside")
SPECIES = {
    s.kind: s
    for s in (
        Species("fox", "den", "trotted", "smell", "red|russet|bushy-tailed|clever"),
        Species("rabbit", "burrow", "hopped", "hear", "brown|grey|fluffy|white", places=_WILD + ("garden", "farm")),
        Species("hare", "hollow", "bounded", "run", "brown|long-eared|quick"),
        Species("bear", "cave", "lumbered", "strong", "brown|big|sleepy|round"),
        Species("mouse", "hole", "scurried", "gnaw", "grey|brown|tiny", places=_WILD + _FARM + ("town",)),
        Species("owl", "hollow tree", "flew", "fly", "round-eyed|speckled|quiet", hand="wing"),
        Species("hedgehog", "nest of leaves", "pattered", "smell", "prickly|round|brown", places=_WILD + ("garden",)),
        Species("squirrel", "nest", "scampered", "climb", "red|grey|bushy-tailed", places=_WILD + ("garden",)),
        Species("frog", "pond", "hopped", "swim", "green|speckled|bright green", hand="foot", places=("river", "garden", "meadow")),
        Species("duck", "nest", "waddled", "swim", "white|brown|yellow", hand="wing", places=("river", "farm", "meadow")),
        Species("beaver", "lodge", "waddled", "gnaw", "brown|busy|wide-tailed", places=("river", "forest")),
        Species("badger", "sett", "trundled", "dig", "striped|grey|sturdy"),
        Species("mole", "tunnel", "shuffled", "dig", "velvety|black|soft", places=_WILD + ("garden",)),
        Species("deer", "thicket", "leapt", "run", "spotted|long-legged|gentle", hand="hoof"),
        Species("turtle", "bank of reeds", "plodded", "swim", "green|slow|patient", hand="foot", places=("river", "seaside", "island")),
        Species("kitten", "basket", "scampered", "climb", "striped|black|ginger|white", places=_FARM + ("town", "seaside")),
        Species("cat", "basket", "padded", "climb", "striped|black|ginger|grey", places=_FARM + ("town", "seaside")),
        Species("puppy", "kennel", "bounded", "smell", "spotted|brown|floppy-eared|golden", places=_FARM + ("town", "seaside")),
        Species("dog", "kennel", "bounded", "smell", "spotted|brown|shaggy|golden", places=_FARM + ("town", "seaside")),
        Species("goat", "shed", "skipped", "climb", "white|brown|bearded", hand="hoof", places=("farm", "hills", "village")),
        Species("pony", "stable", "galloped", "strong", "brown|dappled|shaggy", hand="hoof", places=_FARM + ("hills",)),
        Species("donkey", "stable", "trotted", "strong", "grey|brown|long-eared", hand="hoof", places=_FARM + ("hills",)),
        Species("lamb", "fold", "skipped", "hear", "white|woolly|black-faced", hand="hoof", places=_FARM + ("hills",)),
        Species("piglet", "sty", "trotted", "smell", "pink|spotted|curly-tailed", hand="trotter", places=_FARM),
        Species("hen", "coop", "fluttered", "see", "brown|speckled|white", hand="wing", places=_FARM),
        Species("goose", "pen", "waddled", "fly", "white|grey|proud", hand="wing", places=_FARM + ("river",)),
        Species("crow", "nest", "flew", "fly", "black|glossy|clever", hand="wing", places=_WILD + _FARM + ("town",)),
        Species("sparrow", "nest", "fluttered", "fly", "brown|tiny|cheerful", hand="wing", places=_WILD + _FARM + ("town",)),
        Species("robin", "nest", "fluttered", "fly", "red-breasted|tiny|cheerful", hand="wing", places=_WILD + _FARM + ("snow",)),
        Species("otter", "den by the water", "scampered", "swim", "sleek|brown|playful", places=("river", "seaside")),
        Species("bat", "cave", "flew", "fly", "small|furry|black", hand="wing", places=("forest", "hills", "village")),
        Species("butterfly", "flower bed", "fluttered", "fly", "blue|yellow|orange", hand="wing", places=("garden", "meadow", "jungle")),
        Species("snail", "flowerpot", "crawled", "slow", "patient|spotted|slow", hand="feeler", places=("garden", "meadow")),
        Species("elephant", "clearing", "stamped", "strong", "grey|gentle|wrinkly", hand="trunk", places=("jungle", "river")),
        Species("monkey", "treehouse", "swung", "climb", "cheeky|long-tailed|brown", places=_HOT),
        Species("lion", "den", "bounded", "strong", "golden|shaggy|brave", places=("jungle", "hills")),
        Species("tiger", "den", "padded", "strong", "striped|orange|quiet", places=("jungle",)),
        Species("parrot", "nest", "flew", "fly", "green|red|chatty", hand="wing", places=_HOT),
        Species("crab", "rock pool", "scuttled", "dig", "red|sideways|shy", hand="claw", places=("seaside", "island")),
        Species("seal", "cove", "wriggled", "swim", "grey|shiny|playful", hand="flipper", places=_COLD + ("island",)),
        Species("penguin", "snow hut", "waddled", "swim", "black-and-white|round|cheerful", hand="flipper", places=_COLD),
        Species("gull", "nest", "flew", "fly", "white|noisy|grey", hand="wing", places=("seaside", "island")),
        Species("wolf", "den", "loped", "smell", "grey|white|shaggy", places=("forest", "snow", "hills")),
        Species("raccoon", "hollow log", "scurried", "climb", "striped|masked|nosy", places=("forest", "town", "river")),
        Species("panda", "grove", "rolled", "climb", "fluffy|round|sleepy", places=("hills", "forest")),
        Species("polar bear", "snow cave", "lumbered", "strong", "white|fluffy|big", places=("snow",)),
        Species("dragon", "cave", "flew", "fly", "green|purple|golden", hand="claw", places=("hills", "island", "forest")),
    )
}
# Animals of which nothing special is told, so that the word itself, not its habits, carries the story.
_MORE = """whale dolphin octopus camel giraffe zebra kangaroo koala hippo rhino lizard snake spider ant beetle ladybird bee
dragonfly caterpillar worm hamster cow sheep pig horse chicken rooster turkey swan stork heron pigeon swallow woodpecker eagle hawk
peacock flamingo pelican lemur sloth skunk weasel ferret moose reindeer bison yak llama alpaca chipmunk cricket moth firefly
unicorn elf gnome troll giant mermaid witch wizard knight pirate robot snowman scarecrow princess prince king queen baker farmer
fisherman sailor shepherd painter clockmaker""".split()
SPECIES |= {
    kind: Species(kind, home, "hurried", "wise", "small|young|clever|quiet", places=tuple("forest hills river meadow village town seaside".split()))
    for kind, home in ((k, "house" if i % 2 else "hut") for i, k in enumerate(_MORE))
}
SKILLS = {  # what helps, and how: each completes "{e} ..." in the past tense
    "fly": "flew up above the treetops and looked in every direction",
    "swim": "dived in and swam as smoothly as a fish",
    "dig": "dug so fast that the earth flew in all directions",
    "climb": "climbed up in no time at all",
    "strong": "pushed with all {e.his} might",
    "smell": "put {e.his} nose to the ground and sniffed",
    "gnaw": "set to work with {e.his} sharp little teeth",
    "hear": "pricked up {e.his} ears and listened",
    "run": "set off as fast as the wind",
    "see": "looked carefully at every leaf and stone",
    "slow": "looked slowly and carefully, and missed nothing",
    "wise": "thought for a while and smiled",
}


@dataclass
class Who:
    """A character. Attributes are what templates print: ``{h.he}``, ``{h.intro}``, ``{h.call}``."""

    name: str
    kind: str
    she: bool
    human: bool
    adjective: str = "little"
    species: Species | None = None
    trait: str = "kind"
    intro_override: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def he(self) -> str:
        return "she" if self.she else "he"

    @property
    def He(self) -> str:
        return "She" if self.she else "He"

    @property
    def him(self) -> str:
        return "her" if self.she else "him"

    @property
    def his(self) -> str:
        return "her" if self.she else "his"

    @property
    def His(self) -> str:
        return "Her" if self.she else "His"

    @property
    def himself(self) -> str:
        return "herself" if self.she else "himself"

    @property
    def the(self) -> str:
        """How the text may call somebody already introduced, other than by name."""
        return f"the {self.kind}" if self.human else f"the [|{self.size} ]{self.kind}"

    @property
    def The(self) -> str:
        return "T" + self.the[1:]

    @property
    def size(self) -> str:
        return "big" if self.kind in _LARGE else "little"

    @property
    def call(self) -> str:
        return f"[{self.name}|{self.name}|{self.name}|{self.the}]"

    @property
    def Call(self) -> str:
        return f"[{self.name}|{self.name}|{self.name}|{self.The}]"

    @property
    def intro(self) -> str:
        if self.intro_override:
            return self.intro_override
        how = "named|called|whose name was"
        return f"a [{self.adjective}|{self.size}|{self.trait}|{self.trait} {self.size}] {self.kind} [{how}] {self.name}"

    @property
    def intro_noun(self) -> str:
        """What somebody already named is: "a brave fox"."""
        return f"a [{self.adjective}|{self.size}|{self.trait}|{self.trait} {self.size}] {self.kind}"

    @property
    def short(self) -> str:
        """For a second mention of somebody new: "Pip the fox"."""
        return self.name if self.human else f"{self.name} the {self.kind}"

    @property
    def ran(self) -> str:
        return self.species.ran if self.species else "[ran|hurried|skipped]"

    @property
    def hand(self) -> str:
        return self.species.hand if self.species else "hand"

    @property
    def hands(self) -> str:
        return {"foot": "feet", "hoof": "hooves", "trunk": "trunk"}.get(self.hand, self.hand + "s")

    @property
    def bag(self) -> str:
        return "[pocket|bag]" if self.human else "[little bag|small bag|satchel]"

    @property
    def home(self) -> str:
        if self.species:
            return f"[cosy|snug|warm|tidy] {self.species.home}"
        return "[little|small|cosy|tall, narrow|tidy] [house|cottage]"

    @property
    def bare_home(self) -> str:
        return self.species.home if self.species else "house"

    @property
    def skill(self) -> str:
        return self.species.skill if self.species else "wise"


_LARGE = {"whale", "camel", "giraffe", "hippo", "rhino", "cow", "horse", "moose", "bison", "giant", "troll", "bear", "elephant", "lion", "tiger", "polar bear", "dragon", "deer", "pony", "donkey", "wolf"}
TRAITS = """kind curious shy cheerful brave gentle clever thoughtful careful merry quiet friendly patient
playful lively helpful stubborn dreamy""".split()
TRAIT_SHOWN = {
    "kind": ["{h.He} always had a [good|friendly|kind] word for everyone.", "If anyone was sad, {h} was the first to notice."],
    "curious": ["{h.He} asked a hundred questions a day.", "{h.He} wanted to know how everything worked, and why."],
    "shy": ["{h.He} did not say much, but {h.he} noticed everything.", "When strangers came, {h.he} liked to hide behind {h.his} mother."],
    "cheerful": ["{h.He} hummed a tune from morning until night.", "Even on rainy days {h.he} found something to smile about."],
    "brave": ["{h.He} was not afraid of spiders, thunder or the dark.", "{h.He} always went first when the others were not sure."],
    "gentle": ["Even the smallest beetle was safe when {h.he} walked by.", "{h.He} spoke softly and never pushed."],
    "clever": ["{h.He} could solve any riddle before breakfast.", "{h.He} always had a plan."],
    "thoughtful": ["{h.He} liked to think before {h.he} spoke.", "{h.He} remembered every birthday."],
    "careful": ["{h.He} always looked twice before {h.he} jumped.", "{h.He} kept all {h.his} things in neat rows."],
    "merry": ["{h.He} laughed so loudly that the birds looked round.", "{h.He} could make anybody laugh."],
    "quiet": ["{h.He} liked to sit and listen to the [wind|rain|birds].", "{h.He} moved so softly that nobody ever heard {h.him} coming."],
    "friendly": ["{h.He} said good morning to everyone {h.he} met.", "{h.He} had more friends than {h.he} could count."],
    "patient": ["{h.He} could wait for a whole hour without a single sigh.", "{h.He} never hurried, and {h.he} was never late."],
    "playful": ["{h.He} could turn anything into a game.", "There was nothing {h.he} liked better than hide-and-seek."],
    "lively": ["{h.He} could not sit still for longer than a minute.", "{h.He} ran everywhere, even to bed."],
    "helpful": ["When there was work to do, {h.he} was always there.", "{h.He} helped the neighbours every [day|morning|week]."],
    "stubborn": ["Once {h.he} had made up {h.his} mind, nothing could change it.", "{h.He} did not like to be told what to do."],
    "dreamy": ["{h.He} could look at the clouds for hours.", "{h.He} often forgot what {h.he} was doing and simply gazed at the sky."],
}


def pool(names: list[str], part: str) -> list[str]:
    """The names of one part in a story: heroes, friends and others draw from different ones.

    Nobody is then ever called as somebody else in the same story, not even by a small model that
    would rather repeat a name than think of another.
    """
    return {"hero": names[0::4] + names[1::4], "friend": names[2::4], "other": names[3::4]}[part]


def invented_name(rng: random.Random) -> str:
    """A name nobody has, so that names are copied from the text and not only remembered."""
    if rng.random() < 0.4:
        syllables = "ba be bo da di do ka ke ko la le li lo lu ma me mi mo na ni no nu ra re ri ro sa si su ta te ti to va ve vi za ze zi zu lei mai sha shi thal ori bel dar gor".split()
        return "".join(rng.choice(syllables) for _ in range(rng.randint(2, 4))).capitalize() + rng.choice(["", "", "n", "s", "r", "l", "ka"])
    start = rng.choice("B Br C Ch D Dr F Fl G Gr H J K Kr L M N P Pr Qu R S Sh St T Tr V W Z".split())
    middle = rng.choice(["l", "m", "n", "r", "b", "d", "k", "t", "v", "z", "ll", "nd", "rt", "mb", "st", "ss", "ck"])
    end = rng.choice(["a", "o", "i", "y", "us", "el", "an", "in", "ette", "ia", "o", "ar", "en", ""])
    return start + rng.choice("a e i o u ee oo ai".split()) + middle + end


def child(rng: random.Random, taken: set[str], part: str, name: str | None = None, kind: str | None = None) -> Who:
    """A girl or a boy with a name not in ``taken``."""
    she = kind == "girl" if kind else (name in GIRLS if name in GIRLS or name in BOYS else rng.random() < 0.5)
    while name is None or name in taken:
        name = invented_name(rng) if part == "hero" and rng.random() < 0.04 else rng.choice(pool(GIRLS if she else BOYS, part))
    taken.add(name)
    return Who(name, "girl" if she else "boy", she, True, rng.choice(["little", "small", "young"]), trait=rng.choice(TRAITS))


def animal(rng: random.Random, taken: set[str], part: str, kind: str | None = None, place: str | None = None, name: str | None = None) -> Who:
    """An animal, of a kind that lives at ``place`` unless the kind is given."""
    if kind is None:
        local = [s.kind for s in SPECIES.values() if (place is None or place in s.places) and s.kind not in taken]
        kind = rng.choice(local or list(SPECIES))
    if kind in ("rooster", "wizard", "prince", "king", "fisherman"):
        she = False
    elif kind in ("hen", "cow", "witch", "princess", "queen", "mermaid"):
        she = True
    else:
        she = name in ANIMAL_NAMES_SHE if name else rng.random() < 0.5
    while name is None or name in taken:
        name = invented_name(rng) if part == "hero" and rng.random() < 0.04 else rng.choice(pool(ANIMAL_NAMES_SHE if she else ANIMAL_NAMES_HE, part))
    taken.add(name)
    taken.add(kind)
    species = SPECIES[kind]
    return Who(name, kind, she, False, rng.choice(species.adjectives.split("|")), species, rng.choice(TRAITS))


def elder(rng: random.Random, hero: Who, taken: set[str], related: bool) -> Who:
    """Somebody old and wise: a relative or neighbour of a child, an old animal among animals."""
    she = rng.random() < 0.5
    if not hero.human:
        species = SPECIES[rng.choice([k for k in ("owl", "badger", "turtle", "goat", "crow", "bear", "hare", "goose", "donkey") if k not in taken])]
        taken.add(species.kind)
        surname = rng.choice("Oak Thorn Ash Bark Moss Heather Elder Birch Stone Reed Briar Holly".split())
        name = ("Mrs " if she else "Mr ") + surname
        return Who(name, f"old {species.kind}", she, False, "wise", species, intro_override=f"[|wise ]old {name} the {species.kind}")
    if not related or rng.random() < 0.4:
        surname = rng.choice("Finch Plum Baker Marsh Hill Brook Potter Reed Wood Lamb Pine Stone Bell Carter".split())
        name = ("Mrs " if she else "Mr ") + surname
        return Who(name, "old woman" if she else "old man", she, True, intro_override=f"[old {name} from next door|old {name}|{hero.his} neighbour {name}]")
    role = rng.choice(["grandmother", "aunt", "mother"] if she else ["grandfather", "uncle", "father"])
    names = {"grandmother": "Grandma", "grandfather": "Grandpa", "mother": "Mother", "father": "Father"}
    if role in names:
        return Who(names[role], role, she, True, intro_override=f"{hero.his} {role}")
    name = rng.choice([n for n in (GIRLS if she else BOYS) if n not in taken])
    taken.add(name)
    return Who(f"{role.capitalize()} {name}", role, she, True, intro_override=f"{hero.his} {role.capitalize()} {name}")


@dataclass(frozen=True)
class Place:
    """Where a story happens. ``spots`` are (preposition, noun phrase): "under", "the old oak"."""

    key: str
    a: str
    the: str
    inside: str
    of: str
    spots: tuple[tuple[str, str], ...]
    sights: list[str]
    obstacle: str
    people: str = "animals"

    def __str__(self) -> str:
        return self.the


def _spots(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((a.strip(), b.strip()) for a, b in (line.split(":") for line in text.strip().splitlines()))


PLACES = {
    p.key: p
    for p in (
        Place("forest", "a [quiet|deep|green|shady|wide] forest", "the forest", "in the forest", "in the forest", _spots("""under: the old oak tree
            behind: a mossy rock
            beside: the little stream
            inside: a hollow log
            among: the tall ferns
            near: the blackberry bushes
            under: a heap of dry leaves
            at: the foot of the pine tree
            between: the roots of the great beech
            next to: a ring of mushrooms"""),
            ["sunlight fell through the leaves in golden spots", "the trees whispered to each other in the breeze", "the air smelled of pine needles and moss", "a woodpecker tapped somewhere high above", "the ground was soft with old leaves"],
            "a wide stream"),
        Place("farm", "a [small|busy|sunny|cheerful|muddy] farm", "the farm", "on the farm", "on the farm", _spots("""behind: the red barn
            under: the apple tree
            beside: the duck pond
            inside: the hay loft
            near: the old well
            next to: the pigsty
            among: the pumpkins
            behind: the wooden fence
            under: the milk cart
            at: the garden gate"""),
            ["the rooster crowed on top of the gate", "the hay smelled sweet in the sun", "the cows chewed slowly and looked over the fence", "chickens scratched in the dust", "the windmill turned slowly in the breeze"],
            "a muddy ditch"),
        Place("village", "a [little|small|quiet|friendly] village", "the village", "in the village", "in the village", _spots("""beside: the stone well
            behind: the bakery
            under: the big chestnut tree
            on: the steps of the school
            near: the old bridge
            next to: the flower stall
            in front of: the blacksmith's shop
            behind: the church wall
            under: the market table
            at: the crossroads"""),
            ["smoke curled up from the chimneys", "the smell of fresh bread drifted down the street", "the church bell rang the hour", "a cart rattled over the cobblestones", "geese wandered across the square"],
            "a broken bridge", "neighbours"),
        Place("town", "a [busy|bright|noisy|pretty] town", "the town", "in the town", "in the town", _spots("""on: a bench in the park
            beside: the fountain
            behind: the library
            under: the clock tower
            near: the tram stop
            in front of: the toy shop
            next to: the playground slide
            behind: the fruit stand
            under: the railway bridge
            at: the corner of the street"""),
            ["bicycles rang their bells as they passed", "the shop windows shone in the light", "pigeons pecked at crumbs on the square", "the tall houses stood shoulder to shoulder", "music floated down from an open window"],
            "a long row of road works", "neighbours"),
        Place("seaside", "a [small|windy|sunny] [harbour town|fishing village|cove]", "the sea", "by the sea", "by the sea", _spots("""behind: the sand dunes
            beside: a rock pool
            under: the wooden pier
            inside: an old rowing boat
            near: the lighthouse
            among: the seashells
            next to: a heap of fishing nets
            under: a clump of seaweed
            at: the end of the jetty
            behind: the boat shed"""),
            ["the waves rolled in and out, in and out", "the air tasted of salt", "gulls circled over the water", "the sand was warm and soft", "small white sails moved along the horizon"],
            "a slippery row of rocks"),
        Place("river", "a [green|wide|sleepy|pleasant] river valley", "the river", "by the river", "by the river", _spots("""among: the reeds
            under: the weeping willow
            behind: a fallen log
            beside: the stepping stones
            near: the water mill
            under: the stone bridge
            on: the muddy bank
            next to: the beaver dam
            behind: a clump of bulrushes
            at: the bend of the river"""),
            ["the water sparkled and chattered over the stones", "dragonflies darted over the reeds", "a fish jumped and left a ring on the water", "the willows dipped their branches in the river", "the bank was soft and green"],
            "a patch of deep mud"),
        Place("hills", "a [high|green|windy|stony] valley in the hills", "the hills", "in the hills", "in the hills", _spots("""behind: a grey boulder
            under: the lonely thorn tree
            inside: a shallow cave
            beside: the waterfall
            near: the shepherd's hut
            among: the purple heather
            at: the top of the steep path
            next to: a heap of stones
            under: a rocky ledge
            behind: the stone wall"""),
            ["the wind sang over the grass", "far below, the river looked like a silver ribbon", "an eagle drifted across the sky", "the path wound up and up between the rocks", "the tops of the hills were hidden in cloud"],
            "a steep, stony slope"),
        Place("meadow", "a [wide|sunny|flowery|grassy] meadow", "the meadow", "in the meadow", "in the meadow", _spots("""among: the tall grass
            under: the hawthorn hedge
            beside: the little brook
            near: the beehives
            behind: a haystack
            among: the daisies
            at: the old wooden gate
            under: the crooked apple tree
            next to: a molehill
            behind: the bramble bush"""),
            ["bees hummed from flower to flower", "the grass swayed like a green sea", "poppies and daisies nodded in the breeze", "grasshoppers chirped on every side", "the clouds sailed over like white ships"],
            "a thick hedge of thorns"),
        Place("garden", "a [large|wild|pretty|sunny] garden", "the garden", "in the garden", "in the garden", _spots("""under: the rose bush
            behind: the garden shed
            beside: the lily pond
            inside: an empty flowerpot
            among: the cabbages
            near: the stone wall
            under: the cherry tree
            behind: the watering can
            between: the rows of carrots
            next to: the sunflowers"""),
            ["the roses smelled sweet", "a thousand tiny flowers had opened overnight", "drops of dew shone on every leaf", "a robin sang on the handle of a spade", "the bean plants climbed their poles toward the sun"],
            "a tall wall"),
        Place("snow", "a [white|snowy|cold and quiet] land [of ice and snow|in the far north]", "the snow fields", "in the snow", "in the snow", _spots("""behind: a snowdrift
            under: the frozen fir tree
            inside: an ice cave
            beside: the frozen lake
            near: the snow hut
            on: top of a small white hill
            next to: a tall icicle
            behind: a block of ice
            under: the snowy bushes
            at: the edge of the ice"""),
            ["the snow glittered like sugar", "every breath made a little white cloud", "the ice creaked softly", "the wind drew long waves in the snow", "snowflakes drifted down without a sound"],
            "a deep crack in the ice"),
        Place("jungle", "a [warm|thick|green|steamy] jungle", "the jungle", "in the jungle", "in the jungle", _spots("""under: a banana tree
            behind: a curtain of vines
            beside: the muddy river
            inside: a hollow tree
            among: the giant leaves
            near: the waterfall
            between: the roots of a fig tree
            next to: the orange flowers
            on: a flat, warm stone
            behind: the bamboo"""),
            ["parrots called from tree to tree", "warm rain dripped from the giant leaves", "the air smelled of fruit and flowers", "bright butterflies floated between the vines", "something rustled high up in the branches"],
            "a tangle of vines"),
        Place("island", "a [tiny|green|sunny|faraway] island", "the island", "on the island", "on the island", _spots("""under: the tallest palm tree
            behind: a sandy hill
            beside: the blue lagoon
            inside: a small sea cave
            among: the coconuts
            near: the old shipwreck
            at: the rocky point
            next to: a bush of red flowers
            under: a heap of driftwood
            on: the long white beach"""),
            ["the palm trees rustled in the warm wind", "the water was as clear as glass", "tiny fish flashed in the shallows", "the sand was as white as flour", "the sea murmured all around"],
            "a field of sharp rocks"),
    )
}


@dataclass(frozen=True)
class Spot:
    """One spot of a place: ``{spot}`` is "under the old oak tree", ``{spot.noun}`` the noun alone."""

    preposition: str
    noun: str

    def __str__(self) -> str:
        return f"{self.preposition} {self.noun}"

    @property
    def the(self) -> str:
        """The noun as already known: "a mossy rock" becomes "the mossy rock"."""
        for article in ("a ", "an "):
            if self.noun.startswith(article):
                return "the " + self.noun[len(article) :]
        return self.noun


@dataclass(frozen=True)
class Thing:
    """Something a story turns on. ``use`` is light, sound, tie, hold, find, warm, toy, treasure..."""

    noun: str
    adjectives: str
    use: str
    detail: str
    tags: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        return self.noun

    @property
    def adjective(self) -> str:
        return self.adjectives.split("|")[0]

    @property
    def a(self) -> str:
        return f"a {self.adjective} {self.noun}"

    @property
    def the(self) -> str:
        return f"[the {self.noun}|the {self.noun}|the {self.adjective} {self.noun}]"

    def with_one_adjective(self, rng: random.Random) -> "Thing":
        """The same thing with one adjective chosen, so that a story keeps to it."""
        return Thing(self.noun, rng.choice(self.adjectives.split("|")), self.use, self.detail, self.tags)


THINGS = {
    t.noun: t
    for t in (
        Thing("lantern", "brass|small|old|round|red", "light", "when it was lit, it glowed like a little sun"),
        Thing("lamp", "small|brass|blue|old", "light", "it gave a warm, steady light"),
        Thing("torch", "silver|small|yellow", "light", "its beam could reach the top of the tallest tree"),
        Thing("bell", "silver|tiny|golden|brass", "sound", "it rang with a clear, bright note"),
        Thing("whistle", "tin|wooden|silver|red", "sound", "one could hear it from far, far away"),
        Thing("drum", "red|small|wooden", "sound", "it went boom, boom, boom like a giant's heart"),
        Thing("flute", "wooden|thin|silver", "sound", "its music made everyone stop and listen"),
        Thing("trumpet", "shiny|golden|small", "sound", "it was louder than a whole flock of geese"),
        Thing("horn", "curved|old|brass", "sound", "its call rolled over the land like thunder"),
        Thing("rope", "long|strong|thick", "tie", "it was strong enough to pull a cart"),
        Thing("ribbon", "blue|red|long|yellow", "tie", "it fluttered in the wind like a bird"),
        Thing("scarf", "striped|long|red|woolly|green", "tie", "it was so long that it went round three times", ("warm",)),
        Thing("blanket", "soft|woollen|patchwork|blue", "warm", "it smelled of home"),
        Thing("coat", "warm|green|thick|yellow", "warm", "it had four pockets and a button shaped like a star"),
        Thing("basket", "round|wicker|big", "hold", "it had a lid and a strong handle"),
        Thing("bucket", "wooden|blue|tin", "hold", "it never leaked, not even one drop"),
        Thing("jar", "glass|round|tall", "hold", "in the sun it sparkled like ice"),
        Thing("box", "wooden|painted|small|square", "hold", "there was a star painted on the lid"),
        Thing("cup", "blue|tin|painted", "hold", "it had a tiny crack near the handle"),
        Thing("map", "old|folded|yellow", "find", "it showed every path and every stream"),
        Thing("compass", "brass|small|shiny", "find", "its needle always pointed north"),
        Thing("telescope", "long|brass|old", "find", "it made faraway things look near"),
        Thing("shell", "pink|white|spiral|smooth", "treasure", "if you held it to your ear, you could hear the sea"),
        Thing("marble", "green|blue|glass|striped", "treasure", "there was a tiny swirl of colour inside it"),
        Thing("stone", "smooth|white|round|sparkling", "treasure", "it was warm from the sun and fitted exactly in one hand"),
        Thing("button", "golden|red|shiny", "treasure", "it shone as brightly as a coin"),
        Thing("coin", "golden|silver|old", "treasure", "it had a ship on one side and a star on the other"),
        Thing("ring", "silver|thin|golden", "treasure", "a tiny leaf was carved into it"),
        Thing("feather", "blue|white|long|golden", "treasure", "it was as light as a breath"),
        Thing("key", "rusty|golden|tiny|iron", "treasure", "nobody knew which door it opened"),
        Thing("necklace", "beaded|silver|pretty", "treasure", "every bead had a different colour"),
        Thing("crown", "paper|golden|little", "treasure", "it had five points, and each point had a star"),
        Thing("ball", "red|bouncy|blue|striped", "toy", "it bounced higher than the fence"),
        Thing("kite", "red|blue|yellow|diamond-shaped", "toy", "it had a long tail of paper bows"),
        Thing("doll", "rag|wooden|small", "toy", "it had button eyes and a crooked smile"),
        Thing("boat", "wooden|paper|little|blue", "toy", "it had one white sail"),
        Thing("toy train", "red|wooden|green", "toy", "its wheels really turned"),
        Thing("puppet", "wooden|funny|painted", "toy", "it could bow, dance and wave"),
        Thing("spinning top", "painted|red|wooden", "toy", "it hummed like a bee when it turned"),
        Thing("teddy bear", "brown|soft|old", "toy", "one of its ears had been sewn back on"),
        Thing("hat", "straw|red|pointed|woolly", "wear", "it had a feather on one side"),
        Thing("umbrella", "yellow|big|red|spotted", "cover", "it was big enough for three"),
        Thing("spade", "small|iron|wooden", "dig", "it had a smooth wooden handle"),
        Thing("broom", "long|old|straw", "reach", "it was taller than a chair"),
        Thing("ladder", "tall|wooden", "reach", "it had exactly nine steps"),
        Thing("hammer", "small|wooden|heavy", "mend", "it could fix almost anything"),
        Thing("paintbrush", "thin|new|soft", "draw", "it could make any colour sing"),
        Thing("book", "thick|blue|old", "read", "it was full of pictures of faraway lands"),
        Thing("mirror", "round|little|silver", "shine", "it could catch the sun and throw it across the room"),
        Thing("wagon", "red|wooden|little", "carry", "it could carry more than anyone could lift"),
        Thing("sledge", "wooden|red|fast", "carry", "it slid over the snow like a fish through water"),
    )
}

# Things of which nothing special is told.
_MORE_NOUNS = """acorn apple arrow balloon banana bench bicycle biscuit bone bottle bow bowl bracelet bread brush bubble cake camera candle
candy cape card carpet carrot cart castle chair cheese chest cherry chocolate clover cloud comb cookie cork crayon cushion dice dish door
egg envelope eraser fan fiddle flag flower fork fossil glass glove glue goblet guitar hairpin hook jewel jug kettle ladle leaf lemon letter
lid lollipop lute mask medal melon moon mug mushroom nail needle nest net notebook nut oar orange pan paper parcel peach pear pearl pebble
pencil penny piano picture pie pillow pin pine cone pipe plate poem pot potato present pumpkin puzzle pyramid quill rainbow rocket rose
rug ruler saddle sail sandwich saucepan scissors seed shoe skateboard snowball soap sock spaceship spoon stamp star stick stool story
strawberry string suitcase sunflower sword table tambourine teapot tent thimble ticket tomato toothbrush towel treasure chest tree
trophy tulip turnip vase violin wand watch watering can wheel window wreath yo-yo computer telephone television radio engine magnet
""".replace("pine cone", "pine_cone").replace("treasure chest", "treasure_chest").replace("watering can", "watering_can").replace("scissors ", "").split()
_MORE_DETAILS = ["it was the finest in the whole land", "nobody else had one like it", "it looked quite ordinary, but it was special", "it made everyone who saw it smile", "it was said to bring good luck"]
MORE_THINGS = {
    noun: Thing(noun, ("little|wonderful|strange|beautiful", "old|red|blue|tiny", "shiny|golden|green|special")[i % 3], ("treasure", "toy")[i % 2], _MORE_DETAILS[i % 5])
    for i, noun in enumerate(n.replace("_", " ") for n in _MORE_NOUNS)
    if noun not in THINGS
}
