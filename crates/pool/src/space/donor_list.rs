//! The donors of a space, in a list to which some may be appended while others read it without a lock. None ever
//! changes its place.

use std::sync::OnceLock;

/// How many donors may join a space while it is open, with those that were removed again.
pub const DONORS_JOINING_MAX: usize = 64;

pub(super) struct DonorList<T>(Box<[OnceLock<T>]>);

impl<T> DonorList<T> {
    pub(super) fn new(donors: impl ExactSizeIterator<Item = T>) -> DonorList<T> {
        let free = (0..DONORS_JOINING_MAX).map(|_| OnceLock::new());
        DonorList(donors.map(OnceLock::from).chain(free).collect())
    }

    /// Appends one, and returns its place; `None` if too many have joined.
    pub(super) fn push(&self, donor: T) -> Option<usize> {
        let mut donor = donor;
        for (place, free) in self.0.iter().enumerate() {
            match free.set(donor) {
                Ok(()) => return Some(place),
                Err(back) => donor = back,
            }
        }
        None
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map_while(OnceLock::get)
    }

    pub(super) fn at(&self, place: usize) -> &T {
        self.0[place].get().expect("a place is known once its donor is there")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_join_are_behind_the_others_until_there_are_too_many() {
        let list = DonorList::new([7, 8].into_iter());
        assert_eq!(list.push(9), Some(2));
        assert_eq!((list.iter().copied().collect::<Vec<_>>(), *list.at(2)), (vec![7, 8, 9], 9));
        let more = (0..DONORS_JOINING_MAX).map_while(|donor| list.push(donor)).count();
        assert_eq!(more, DONORS_JOINING_MAX - 1);
    }
}
