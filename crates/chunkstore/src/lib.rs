//! `chunkstore`
