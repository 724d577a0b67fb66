//! Which launches have to wait for which: what a queue needs to know that runs launches at the same time unless told not to.

use crate::launch::{Access, Launch, Operand};

/// What launches touched since all of them were last waited for.
#[derive(Debug, Default)]
pub(crate) struct Hazards {
    touched: Vec<Operand>,
}

impl Hazards {
    /// Whether `launch` has to wait for the launches before it: it reads what one of them writes, or writes what one of
    /// them touches. Whoever is told so waits for all of them.
    pub(crate) fn must_wait(&mut self, launch: &Launch) -> bool {
        // Nothing in a step writes what is constant.
        let operands = launch.operands.iter().filter(|operand| operand.access != Access::Constant);
        let waits = operands.clone().any(|operand| self.touched.iter().any(|before| collide(operand, before)));
        if waits {
            self.touched.clear();
        }
        self.touched.extend(operands);
        waits
    }
}

/// `launches` in stretches: those of one need not wait for each other, but for the stretch before.
#[cfg(any(test, feature = "sim"))]
pub(crate) fn stretches(launches: &[Launch]) -> Vec<&[Launch]> {
    let mut hazards = Hazards::default();
    let waits: Vec<_> = launches.iter().map(|launch| hazards.must_wait(launch)).collect();
    let mut begins: Vec<_> = (1..launches.len()).filter(|&index| waits[index]).collect();
    begins.push(launches.len());
    let mut begin = 0;
    begins.into_iter().map(|end| &launches[std::mem::replace(&mut begin, end)..end]).collect()
}

fn collide(a: &Operand, b: &Operand) -> bool {
    (a.access != Access::Read || b.access != Access::Read) && !a.region.is_apart(b.region)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Region;
    use crate::params::{Address, EmbedParams};

    /// Of 16 bytes each; `place` counts in bytes.
    fn launch(operands: &[(Access, u64)]) -> Launch {
        let empty = Launch::new("none", [1, 1, 1], &EmbedParams::default());
        operands.iter().fold(empty, |launch, &(access, place)| {
            launch.with(access, Region { address: Address(0x1000 + place), bytes: 16 })
        })
    }

    fn waits(launches: &[&[(Access, u64)]]) -> Vec<bool> {
        let mut hazards = Hazards::default();
        launches.iter().map(|operands| hazards.must_wait(&launch(operands))).collect()
    }

    use Access::{Constant, Read, Update, Write};

    #[test]
    fn a_launch_waits_for_what_it_reads_and_for_readers_of_what_it_writes() {
        assert_eq!(waits(&[&[(Write, 0)], &[(Read, 0)]]), [false, true]);
        assert_eq!(waits(&[&[(Read, 0)], &[(Write, 0)]]), [false, true]);
        assert_eq!(waits(&[&[(Write, 0)], &[(Write, 0)]]), [false, true]);
        assert_eq!(waits(&[&[(Update, 0)], &[(Update, 0)]]), [false, true]);
        // One byte is enough, from either side.
        assert_eq!(waits(&[&[(Write, 0)], &[(Read, 15)]]), [false, true]);
        assert_eq!(waits(&[&[(Write, 15)], &[(Read, 0)]]), [false, true]);
    }

    #[test]
    fn launches_that_share_nothing_that_is_written_run_beside_each_other() {
        assert_eq!(waits(&[&[(Read, 0)], &[(Read, 0)]]), [false, false]);
        assert_eq!(waits(&[&[(Write, 0)], &[(Write, 16)], &[(Read, 32)]]), [false, false, false]);
        assert_eq!(waits(&[&[(Constant, 0), (Write, 16)], &[(Constant, 0), (Write, 32)]]), [false, false]);
    }

    #[test]
    fn stretches_are_all_launches_in_their_order() {
        let launches: Vec<_> = [[(Write, 0)], [(Write, 16)], [(Read, 0)], [(Read, 16)], [(Write, 0)]]
            .iter()
            .map(|it| launch(it))
            .collect();
        let lengths: Vec<_> = stretches(&launches).iter().map(|stretch| stretch.len()).collect();
        assert_eq!(lengths, [2, 2, 1]);
        assert_eq!(stretches(&launches[..1]).len(), 1);
        assert!(stretches(&[]).concat().is_empty());
    }

    #[test]
    fn one_wait_is_for_all_launches_before_it_and_for_none_behind() {
        // The second reads what the first wrote; the third does too, and need not wait again.
        assert_eq!(waits(&[&[(Write, 0)], &[(Read, 0)], &[(Read, 0)]]), [false, true, false]);
        // The third overwrites what the second read after its wait.
        assert_eq!(waits(&[&[(Write, 0)], &[(Read, 0)], &[(Write, 0)]]), [false, true, true]);
        // Not only the launch just before counts.
        assert_eq!(waits(&[&[(Write, 0)], &[(Write, 16)], &[(Read, 0)]]), [false, false, true]);
        // The wait of the third was for the first too.
        assert_eq!(waits(&[&[(Write, 0)], &[(Write, 16)], &[(Read, 16)], &[(Read, 0)]]), [false, false, true, false]);
    }
}
