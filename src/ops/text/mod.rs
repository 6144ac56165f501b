//! Strings.

mod join;
mod normalizer;
mod regex;
mod regex_match;
mod split;
mod tfidf;

pub(super) use join::STRING_CONCAT;
pub(super) use normalizer::STRING_NORMALIZER;
pub(super) use regex_match::REGEX_FULL_MATCH;
pub(super) use split::STRING_SPLIT;
pub(super) use tfidf::TF_IDF_VECTORIZER;

use crate::tensor::Tensor;

/// A tensor of strings for a case, whose author counts its elements.
pub(in crate::ops) fn strings(shape: &[usize], elements: &[&str]) -> Tensor {
    let owned = elements.iter().map(|s| (*s).to_owned()).collect();
    Tensor::from_strings(shape, owned).expect("a case gives as many strings as its shape has")
}
