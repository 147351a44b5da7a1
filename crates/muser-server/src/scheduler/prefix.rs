//! The prefix cache: finds states of earlier prompts by the longest common prefix of
//! their tokens. It is a radix tree over token ids whose nodes may hold a snapshot.
//!
//! A snapshot is a session, with its KV cache; a clone of it shares its storage. It
//! serves every prompt that begins with its tokens. It also serves prompts that begin
//! with some of them, if its sliding layers still hold the window before the cut. It was
//! computed by the same arithmetic, so using it moves no bit.
//!
//! Each snapshot counts with all its bytes, as if none were shared: memory stays under
//! the budget, at the price of fewer snapshots than would fit. The snapshot that was
//! least recently used is evicted first.

use muser_engine::Token;
use std::collections::BTreeMap;

/// The prefix cache: a radix tree over token ids that finds states of earlier prompts.
#[derive(Debug)]
pub(crate) struct PrefixTree<S> {
    nodes: Vec<Node<S>>,
    free: Vec<usize>,
    budget: u64,
    bytes: u64,
    clock: u64,
}

#[derive(Debug)]
struct Node<S> {
    /// The tokens on the edge of the prefix cache's tree from the parent node to this
    /// one; empty at the root.
    edge: Vec<Token>,
    parent: usize,
    children: BTreeMap<Token, usize>,
    snapshot: Option<Snapshot<S>>,
}

#[derive(Debug)]
struct Snapshot<S> {
    value: S,
    bytes: u64,
    used: u64,
}

/// What a search of the prefix cache found for a prompt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found<R> {
    /// The number of tokens that the prompt shares with the longest matching path of the
    /// prefix cache's tree.
    pub(crate) common: usize,
    /// The number of prompt tokens that the best snapshot saves, and the session (or
    /// other value) that the search's closure made of it.
    pub(crate) best: Option<(usize, R)>,
}

const ROOT: usize = 0;
/// The number of snapshots that a search of the prefix cache tries below the point where
/// a prompt leaves the tree.
const TRIES: usize = 4;

impl<S> PrefixTree<S> {
    /// Creates an empty prefix cache whose snapshots take at most `budget` bytes.
    pub(crate) fn new(budget: u64) -> Self {
        Self {
            nodes: vec![Node {
                edge: Vec::new(),
                parent: ROOT,
                children: BTreeMap::new(),
                snapshot: None,
            }],
            free: Vec::new(),
            budget,
            bytes: 0,
            clock: 0,
        }
    }

    /// Returns the bytes of all snapshots in the prefix cache, each counted in full.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Finds the snapshot that saves most of a prompt's `tokens`. The closure `take`
    /// tries a snapshot: it returns how many tokens this really saves, and a value made
    /// of it.
    pub(crate) fn find<R>(
        &mut self,
        tokens: &[Token],
        mut take: impl FnMut(&S) -> (usize, R),
    ) -> Found<R> {
        let (mut node, mut common) = (ROOT, 0);
        let mut on_path = None;
        let end = loop {
            if self.nodes[node].snapshot.is_some() {
                on_path = Some(node);
            }
            let next = tokens
                .get(common)
                .and_then(|t| self.nodes[node].children.get(t));
            let Some(&next) = next else {
                break node;
            };
            let edge = &self.nodes[next].edge;
            let shared = shared(edge, &tokens[common..]);
            common += shared;
            if shared < edge.len() {
                break next;
            }
            node = next;
        };
        let mut candidates = self.newest_below(end);
        candidates.extend(on_path);
        let mut best: Option<(usize, R, usize)> = None;
        for i in candidates {
            let Some(snapshot) = &self.nodes[i].snapshot else {
                continue;
            };
            let (saved, made) = take(&snapshot.value);
            if saved > 0 && best.as_ref().is_none_or(|b| saved > b.0) {
                best = Some((saved, made, i));
            }
        }
        self.clock += 1;
        let clock = self.clock;
        let best = best.map(|(saved, made, i)| {
            if let Some(snapshot) = &mut self.nodes[i].snapshot {
                snapshot.used = clock;
            }
            (saved, made)
        });
        Found { common, best }
    }

    /// Returns the nodes with the most recently used snapshots, at and below a node of
    /// the prefix cache's tree.
    fn newest_below(&self, node: usize) -> Vec<usize> {
        let mut found = Vec::new();
        let mut open = vec![node];
        while let Some(i) = open.pop() {
            if let Some(s) = &self.nodes[i].snapshot {
                found.push((s.used, i));
            }
            open.extend(self.nodes[i].children.values());
        }
        found.sort_unstable_by_key(|f| std::cmp::Reverse(*f));
        found.truncate(TRIES);
        found.into_iter().map(|f| f.1).collect()
    }

    /// Adds to the prefix cache a snapshot of the state after these tokens. It replaces
    /// an older one of the same tokens; the least recently used ones are evicted if the
    /// budget is exceeded.
    pub(crate) fn insert(&mut self, tokens: &[Token], value: S, bytes: u64) {
        if bytes > self.budget || tokens.is_empty() {
            return;
        }
        let node = self.node_of(tokens);
        self.clock += 1;
        let snapshot = Snapshot {
            value,
            bytes,
            used: self.clock,
        };
        if let Some(old) = self.nodes[node].snapshot.replace(snapshot) {
            self.bytes -= old.bytes;
        }
        self.bytes += bytes;
        while self.bytes > self.budget && self.evict() {}
    }

    /// Returns the node for these tokens in the prefix cache's tree, and creates it if
    /// there is none.
    fn node_of(&mut self, tokens: &[Token]) -> usize {
        let (mut node, mut at) = (ROOT, 0);
        while let Some(first) = tokens.get(at) {
            let Some(&next) = self.nodes[node].children.get(first) else {
                return self.add(node, tokens[at..].to_vec());
            };
            let edge = &self.nodes[next].edge;
            let shared = shared(edge, &tokens[at..]);
            if shared < edge.len() {
                self.split(next, shared);
                // The new node takes the place of the old one.
                node = self.nodes[next].parent;
            } else {
                node = next;
            }
            at += shared;
        }
        node
    }

    fn add(&mut self, parent: usize, edge: Vec<Token>) -> usize {
        let first = edge.first().copied();
        let node = Node {
            edge,
            parent,
            children: BTreeMap::new(),
            snapshot: None,
        };
        let i = match self.free.pop() {
            Some(i) => {
                self.nodes[i] = node;
                i
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        if let Some(first) = first {
            self.nodes[parent].children.insert(first, i);
        }
        i
    }

    /// Splits the edge that leads to `node` of the prefix cache's tree by a new node in
    /// between, after the edge's first `at` tokens.
    fn split(&mut self, node: usize, at: usize) {
        let parent = self.nodes[node].parent;
        let rest = self.nodes[node].edge.split_off(at);
        let before = std::mem::take(&mut self.nodes[node].edge);
        let middle = self.add(parent, before);
        if let Some(&first) = rest.first() {
            self.nodes[middle].children.insert(first, node);
        }
        self.nodes[node].edge = rest;
        self.nodes[node].parent = middle;
    }

    /// Drops the least recently used snapshot of the prefix cache; returns whether there
    /// was one.
    fn evict(&mut self) -> bool {
        let used = |n: &Node<S>| n.snapshot.as_ref().map(|s| s.used);
        let each = self.nodes.iter().enumerate();
        let oldest = each.filter_map(|(i, n)| Some((used(n)?, i))).min();
        let Some((_, i)) = oldest else {
            return false;
        };
        if let Some(old) = self.nodes[i].snapshot.take() {
            self.bytes -= old.bytes;
        }
        self.prune(i);
        true
    }

    /// Removes nodes of the prefix cache's tree that hold no snapshot, from node `i`
    /// upwards: leaves, and nodes with one child, whose two edges are joined.
    fn prune(&mut self, mut i: usize) {
        while i != ROOT && self.nodes[i].snapshot.is_none() {
            let parent = self.nodes[i].parent;
            let mut children = self.nodes[i].children.values().copied();
            match (children.next(), children.next()) {
                (None, _) => {
                    if let Some(&first) = self.nodes[i].edge.first() {
                        self.nodes[parent].children.remove(&first);
                    }
                    self.release(i);
                    i = parent;
                }
                (Some(child), None) => {
                    let mut edge = std::mem::take(&mut self.nodes[i].edge);
                    edge.append(&mut self.nodes[child].edge);
                    if let Some(&first) = edge.first() {
                        self.nodes[parent].children.insert(first, child);
                    }
                    self.nodes[child].edge = edge;
                    self.nodes[child].parent = parent;
                    self.release(i);
                    return;
                }
                _ => return,
            }
        }
    }

    fn release(&mut self, i: usize) {
        self.nodes[i].children.clear();
        self.nodes[i].edge = Vec::new();
        self.free.push(i);
    }

    /// Empties the prefix cache: drops all its snapshots and nodes.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.budget);
    }
}

/// Returns the length of the common prefix of two token sequences.
fn shared(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches a prefix tree of the tests, whose snapshots are lists of tokens; each
    /// saves as many tokens as it shares with the prompt.
    fn find(tree: &mut PrefixTree<Vec<Token>>, tokens: &[Token]) -> (usize, Option<usize>) {
        let found = tree.find(tokens, |s| (shared(s, tokens), ()));
        (found.common, found.best.map(|b| b.0))
    }

    fn insert(tree: &mut PrefixTree<Vec<Token>>, tokens: &[Token]) {
        tree.insert(tokens, tokens.to_vec(), 10);
    }

    #[test]
    fn the_longest_common_prefix_is_found_above_and_below() {
        let mut tree = PrefixTree::new(1000);
        assert_eq!(find(&mut tree, &[1, 2]), (0, None));
        insert(&mut tree, &[1, 2, 3, 4]);
        insert(&mut tree, &[1, 2]);
        insert(&mut tree, &[1, 2, 3, 9, 9]);
        assert_eq!(find(&mut tree, &[1, 2, 3, 4, 5]), (4, Some(4)));
        assert_eq!(find(&mut tree, &[1, 2, 3, 9, 8]), (4, Some(4)));
        assert_eq!(find(&mut tree, &[1, 5]), (1, Some(1)));
        assert_eq!(find(&mut tree, &[7]), (0, None));
        // If `take` refuses the snapshots below, the one on the path is used.
        let found = tree.find(&[1, 2, 3, 9, 8], |s| match s.len() {
            2 => (2, "short"),
            _ => (0, "long"),
        });
        assert_eq!((found.common, found.best), (4, Some((2, "short"))));
    }

    #[test]
    fn memory_stays_within_the_budget_and_the_oldest_goes() {
        let mut tree = PrefixTree::new(30);
        for i in 0..3 {
            insert(&mut tree, &[5, i, i]);
        }
        assert_eq!(find(&mut tree, &[5, 0, 0]).1, Some(3));
        insert(&mut tree, &[6]);
        assert_eq!(tree.bytes(), 30);
        assert_eq!(find(&mut tree, &[5, 1, 1]).1, Some(1), "the oldest is gone");
        assert_eq!(find(&mut tree, &[5, 0, 0]).1, Some(3));
        tree.insert(&[8], vec![8], 31);
        assert_eq!(find(&mut tree, &[8]), (0, None), "more than all there is");
        tree.clear();
        assert_eq!((tree.bytes(), find(&mut tree, &[6])), (0, (0, None)));
    }

    /// Compares the prefix cache's tree with a plain list of the same sequences, with
    /// evictions in between.
    #[test]
    fn a_tree_finds_what_a_list_finds() {
        let mut tree: PrefixTree<Vec<Token>> = PrefixTree::new(200);
        let mut state = 1u32;
        let mut next = |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % n
        };
        for _ in 0..3000 {
            let n = 1 + next(6);
            let tokens: Vec<Token> = (0..n).map(|_| next(3)).collect();
            let kept: Vec<Vec<Token>> = tree
                .nodes
                .iter()
                .filter_map(|n| Some(n.snapshot.as_ref()?.value.clone()))
                .collect();
            assert_eq!(kept.len() as u64 * 10, tree.bytes());
            assert!(kept.len() <= 20);
            let longest = kept.iter().map(|k| shared(k, &tokens)).max().unwrap_or(0);
            let (common, saved) = find(&mut tree, &tokens);
            assert_eq!((common, saved.unwrap_or(0)), (longest, longest));
            if next(2) == 0 {
                insert(&mut tree, &tokens);
            }
            // Every node has a snapshot or a fork.
            let live = tree.nodes.len() - tree.free.len();
            assert!(live <= 2 * 20 + 1, "{live} nodes");
        }
    }
}
