//! A queue in which owners (clients) take turns, however many items each of them has
//! waiting.

use std::collections::VecDeque;

/// A queue of waiting items, served in rotation over their owners (clients); items of
/// one owner keep their order.
#[derive(Debug)]
pub(crate) struct Turns<K, T> {
    owners: VecDeque<(K, VecDeque<T>)>,
    len: usize,
}

impl<K: PartialEq, T> Turns<K, T> {
    pub(crate) fn new() -> Self {
        Self {
            owners: VecDeque::new(),
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an item to the queue, behind all others of its owner (a client).
    pub(crate) fn push(&mut self, owner: K, item: T) {
        self.len += 1;
        match self.owners.iter_mut().find(|(k, _)| *k == owner) {
            Some((_, items)) => items.push_back(item),
            None => self.owners.push_back((owner, VecDeque::from([item]))),
        }
    }

    /// Removes the next item from the queue and returns it; its owner (a client) then
    /// waits behind all others. The item is of the first owner that has an item with a
    /// rank, and is that owner's first item of least rank. Items for which `rank`
    /// returns `None` may not go now.
    pub(crate) fn pop(&mut self, mut rank: impl FnMut(&T) -> Option<u64>) -> Option<T> {
        let mut best = |items: &VecDeque<T>| {
            let ranked = items.iter().enumerate();
            let ranked = ranked.filter_map(|(at, item)| Some((rank(item)?, at)));
            ranked.min().map(|(_, at)| at)
        };
        let mut owners = self.owners.iter().enumerate();
        let (owner, at) = owners.find_map(|(i, (_, items))| Some((i, best(items)?)))?;
        let (key, mut items) = self.owners.remove(owner)?;
        let item = items.remove(at)?;
        self.len -= 1;
        if !items.is_empty() {
            self.owners.push_back((key, items));
        }
        Some(item)
    }

    /// Iterates over all items that wait in the queue, not in the order of their turns.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.owners.iter().flat_map(|(_, items)| items)
    }

    /// Removes the items of the queue for which `keep` returns false.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        for (_, items) in &mut self.owners {
            items.retain_mut(&mut keep);
        }
        self.owners.retain(|(_, items)| !items.is_empty());
        self.len = self.owners.iter().map(|(_, items)| items.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_take_turns_whatever_each_has_waiting() {
        let mut turns = Turns::new();
        for i in 0..4 {
            turns.push('a', ('a', i));
        }
        turns.push('b', ('b', 0));
        turns.push('c', ('c', 0));
        turns.push('c', ('c', 1));
        let order: Vec<_> = std::iter::from_fn(|| turns.pop(|_| Some(0))).collect();
        let expected = [
            ('a', 0),
            ('b', 0),
            ('c', 0),
            ('a', 1),
            ('c', 1),
            ('a', 2),
            ('a', 3),
        ];
        assert_eq!(order, expected);
        assert!(turns.is_empty());
    }

    #[test]
    fn the_least_rank_of_an_owner_goes_first() {
        let mut turns = Turns::new();
        for (owner, rank) in [('a', 5), ('a', 3), ('a', 3), ('b', 9)] {
            turns.push(owner, (owner, rank));
        }
        let order: Vec<_> = std::iter::from_fn(|| turns.pop(|i| Some(i.1))).collect();
        assert_eq!(order, [('a', 3), ('b', 9), ('a', 3), ('a', 5)]);
    }

    #[test]
    fn who_may_not_go_is_passed_over_and_keeps_the_turn() {
        let mut turns = Turns::new();
        turns.push('a', 1);
        turns.push('a', 2);
        turns.push('b', 3);
        assert_eq!(turns.pop(|&i| (i == 3).then_some(0)), Some(3));
        assert_eq!(turns.pop(|&i| (i == 2).then_some(0)), Some(2));
        assert_eq!(turns.pop(|&i| (i == 9).then_some(0)), None);
        turns.push('b', 4);
        assert_eq!(turns.len(), 2);
        turns.retain(|i| *i != 1);
        assert_eq!(turns.iter().collect::<Vec<_>>(), [&4]);
        assert_eq!(turns.len(), 1);
    }
}
