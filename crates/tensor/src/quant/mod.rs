//! Block formats, one file each: the block as a type, the packer, and the exact inverse.

pub mod q8_0;
