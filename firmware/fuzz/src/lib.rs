//! Nothing: what there is, is in `targets`.
