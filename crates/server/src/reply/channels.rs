//! Messages with channels, as gpt-oss writes them: `<|channel|>analysis<|message|>…<|end|><|start|>assistant…`. A message to
//! a function is a call of it.

use super::call::CallReader;
use super::{
    CHANNEL_CALL, CHANNEL_END, CHANNEL_MESSAGE, CHANNEL_NAME, CHANNEL_RETURN, CHANNEL_START, Channel, End, Mode, Part,
    ReplyReader, kept, push_part,
};

impl ReplyReader {
    pub(super) fn channel_header(&mut self, parts: &mut Vec<Part>, ended: bool) -> bool {
        let beginnings = [self.in_reasoning(CHANNEL_START), self.in_reasoning(CHANNEL_NAME), " to="];
        let is_header = beginnings.iter().any(|beginning| self.buffer.starts_with(beginning));
        let may_be = beginnings.iter().any(|beginning| beginning.starts_with(self.buffer.as_str()));
        if !is_header && (self.buffer.is_empty() || (may_be && !ended)) {
            return false;
        }
        if !is_header {
            // No message of any channel: the text is what the model said.
            self.mode = Mode::Content;
            return true;
        }
        let begins = self.in_reasoning(CHANNEL_MESSAGE);
        let Some(at) = self.buffer.find(begins) else {
            if ended {
                push_part(parts, Part::Content(std::mem::take(&mut self.buffer)));
            }
            return false;
        };
        let message = self.buffer.split_off(at + begins.len());
        let header = std::mem::replace(&mut self.buffer, message);
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let name_of = |to: &str| to.split(|c| !is_name(c)).next().unwrap_or_default().to_owned();
        // The model may leave out that it is a function.
        let to = header.split_once("to=functions.").map(|(_, to)| name_of(to)).or_else(|| {
            let name = header.split_once("to=").map(|(_, to)| name_of(to));
            name.filter(|name| self.is_offered(name))
        });
        let names = |channel: &str| {
            header.split_once(self.in_reasoning(CHANNEL_NAME)).is_some_and(|(_, named)| named.starts_with(channel))
        };
        self.mode = Mode::Channel(match to {
            Some(name) if !name.is_empty() => {
                self.held = Some(header);
                Channel::Call(CallReader::arguments(name))
            }
            _ if names("analysis") => Channel::Analysis,
            _ => Channel::Shown,
        });
        true
    }

    pub(super) fn channel(&mut self, parts: &mut Vec<Part>, end: End) -> bool {
        let Mode::Channel(mut channel) = std::mem::replace(&mut self.mode, Mode::ChannelHeader) else { return false };
        let ended = end != End::No;
        let next = self.in_reasoning(CHANNEL_START);
        let ends = [CHANNEL_END, CHANNEL_CALL, CHANNEL_RETURN].map(|end| self.in_reasoning(end));
        let ends = [ends[0], ends[1], ends[2], next];
        let first = ends.into_iter().filter_map(|end| Some((self.buffer.find(end)?, end))).min();
        let text = match first {
            Some((at, end)) => {
                let rest = self.buffer.split_off(if end == next { at } else { at + end.len() });
                let mut text = std::mem::replace(&mut self.buffer, rest);
                text.truncate(at);
                text
            }
            None => {
                // What may be the beginning of an end waits.
                let keep = |end: &&str| kept(&self.buffer, end);
                let keep = if ended { 0 } else { ends.iter().map(keep).max().unwrap_or(0) };
                let rest = self.buffer.split_off(self.buffer.len() - keep);
                std::mem::replace(&mut self.buffer, rest)
            }
        };
        let is_over = first.is_some() || (ended && matches!(channel, Channel::Call(_)));
        match &mut channel {
            Channel::Analysis => push_part(parts, Part::Reasoning(text)),
            Channel::Shown => push_part(parts, Part::Content(text)),
            Channel::Call(reader) => {
                // All of the message, for the case that it is none.
                let behind = text[reader.push(&text)..].to_owned();
                // The token that ends a call ends the text, and is no part of it.
                if is_over && (first.is_some() || end == End::Ended) {
                    reader.end();
                }
                let announced = reader.announced;
                reader.take_parts(parts);
                if reader.has_failed() {
                    let read = format!("{}{behind}", reader.raw);
                    self.give_back(parts, announced, &read);
                    channel = Channel::Shown;
                } else if is_over && reader.is_whole() {
                    self.called(&reader.name.clone().unwrap_or_default());
                    self.held = None;
                    self.num_calls += 1;
                }
            }
        }
        if !is_over {
            self.mode = Mode::Channel(channel);
        }
        is_over
    }
}
