//! What models of one process leave each other of a device's memory.
//!
//! What a device says that it has free is of little use beside another model: a CPU's cache takes its memory when it is
//! written for the first time, and a GPU that was found once says what it said then. So it is counted what was given.

use backend::DeviceInfo;

/// The models of a process, as far as they are loaded.
#[derive(Debug)]
pub(crate) struct Neighbours {
    /// All that are to be loaded.
    models: u64,
    /// Bytes of the weights of those that come after the one that is being loaded.
    awaited: u64,
    given: Vec<DeviceShare>,
}

/// What a model was given of a device's memory.
#[derive(Clone, Debug)]
pub(crate) struct DeviceShare {
    /// The device's name.
    pub(crate) device: String,
    /// Bytes that were free there before.
    pub(crate) had: u64,
    /// Weights, cache and activations; of a CPU, which reads weights where the file is mapped, the cache alone.
    pub(crate) bytes: u64,
}

/// A model that is the only one of its process.
pub(crate) static ALONE: Neighbours = Neighbours { models: 1, awaited: 0, given: vec![] };

impl Neighbours {
    /// Of so many models, the first of which is loaded next.
    pub(crate) fn of(models: usize) -> Self {
        Self { models: models.max(1) as u64, awaited: 0, given: vec![] }
    }

    /// Says how large the weights of the models are that come after the next.
    pub(crate) fn await_bytes(&mut self, bytes: u64) {
        self.awaited = bytes;
    }

    /// Notes what the next model was given.
    pub(crate) fn give(&mut self, given: DeviceShare) {
        self.given.push(given);
    }

    /// Whether there is, or will be, another.
    pub(crate) fn is_any(&self) -> bool {
        self.models > 1
    }

    /// Bytes that the others have of this device.
    pub(crate) fn bytes_on(&self, device: &str) -> u64 {
        self.given.iter().filter(|given| given.device == device).fold(0, |sum, given| sum.saturating_add(given.bytes))
    }

    /// Bytes of this device that nobody has.
    pub(crate) fn free(&self, device: &DeviceInfo) -> u64 {
        let first = self.given.iter().find(|given| given.device == device.name);
        let left = first.map(|first| first.had.saturating_sub(self.bytes_on(&device.name)));
        left.map_or(device.memory_bytes, |left| left.min(device.memory_bytes))
    }

    /// Bytes of a KV cache whose size no flag says: the smaller of `room` less the weights that are still to be loaded
    /// (all of `room` if they leave nothing), and this model's equal share of the device's memory.
    pub(crate) fn cache_bytes(&self, device: &DeviceInfo, room: u64, share: u64) -> u64 {
        let had = self.given.iter().find(|given| given.device == device.name).map_or(device.memory_bytes, |g| g.had);
        let room = room.checked_sub(self.awaited).filter(|&left| left > 0).unwrap_or(room);
        room.min(had / share / self.models)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, memory_bytes: u64) -> DeviceInfo {
        DeviceInfo { name: name.to_owned(), description: String::new(), memory_bytes, driver: None }
    }

    #[test]
    fn what_was_given_is_not_given_again() {
        let mut neighbours = Neighbours::of(2);
        let cuda = device("cuda", 1000);
        neighbours.await_bytes(300);
        assert_eq!((neighbours.free(&cuda), neighbours.cache_bytes(&cuda, 900, 4)), (1000, 125));
        assert_eq!(neighbours.cache_bytes(&cuda, 350, 4), 50);
        // Where the other does not fit anyway, nothing is kept for it.
        assert_eq!(neighbours.cache_bytes(&cuda, 200, 4), 125);
        neighbours.give(DeviceShare { device: "cuda".to_owned(), had: 1000, bytes: 600 });
        neighbours.await_bytes(0);
        // Whether the device says what it had or what it has.
        assert_eq!([1000, 420, 390].map(|says| neighbours.free(&device("cuda", says))), [400, 400, 390]);
        assert_eq!(neighbours.cache_bytes(&device("cuda", 420), 400, 4), 125);
        assert_eq!((neighbours.free(&device("cpu", 50)), neighbours.bytes_on("cuda")), (50, 600));
    }

    #[test]
    fn a_model_alone_has_what_there_is() {
        let cpu = device("cpu", 1000);
        assert_eq!((ALONE.free(&cpu), ALONE.cache_bytes(&cpu, 1000, 4), ALONE.is_any()), (1000, 250, false));
    }
}
