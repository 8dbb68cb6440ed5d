//! A lossless codec for neural-network weights: bytes in, fewer bytes out.
