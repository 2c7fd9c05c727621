//! Who is connected: nobody keeps the others out.
//!
//! A connection that has sent no whole request costs its maker nothing, so it is the first to go when there are too many,
//! the oldest before all others; then those that wait for their next request. Of those that are being answered one goes only
//! if it has been slow to take its answer, or earlier ones, the slowest before all others.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use hyper::body::{Bytes, Frame, SizeHint};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Lines about closed connections come no more often than this.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// Who has taken so many bytes a second of an answer was not slow, whatever he did before: any line takes as much. Of the others
/// all answers count together, or who takes one just in time, and asks for the next, would never be slow.
const FAST: u128 = 64 << 10;

/// Whose a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// Of an address; of one network of version 6, which a single host has as a rule; of this machine, which has millions.
    Address(IpAddr),
    /// Of a user of this machine.
    User(u32),
}

impl Peer {
    /// Of an address.
    pub(super) fn at(address: IpAddr) -> Self {
        match address.to_canonical() {
            address if address.is_loopback() => Self::Address(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self::Address([a, b, c, d, 0, 0, 0, 0].into())
            }
            address @ IpAddr::V4(_) => Self::Address(address),
        }
    }
}

#[derive(Debug)]
struct Connection {
    peer: Peer,
    /// Whole requests that it has sent.
    requests: u64,
    /// Those of them that are being answered.
    open: u64,
    /// What it has taken of answers for which its end had no room.
    taking: Taking,
    task: Option<AbortHandle>,
}

impl Connection {
    fn of(peer: Peer) -> Self {
        Self { peer, requests: 0, open: 0, taking: Taking::default(), task: None }
    }
}

/// How long there was no room for all of an answer, and what was taken meanwhile.
#[derive(Clone, Copy, Debug, Default)]
struct Taking {
    /// Since when there is none, if there is none now.
    since: Option<Instant>,
    /// How long there was none for earlier answers, the slow ones.
    before: Duration,
    bytes: u64,
}

impl Taking {
    fn time(self) -> Duration {
        self.before.saturating_add(self.since.map_or(Duration::ZERO, |since| since.elapsed()))
    }

    fn bytes_per_second(self) -> u128 {
        u128::from(self.bytes) * 1000 / self.time().as_millis().max(1)
    }

    /// The same when an answer has been taken.
    fn between_answers(self) -> Self {
        if self.bytes_per_second() >= FAST {
            return Self::default();
        }
        Self { since: None, before: self.time(), bytes: self.bytes }
    }
}

/// What is open.
#[derive(Debug, Default)]
struct State {
    /// By number, the oldest first.
    connections: BTreeMap<u64, Connection>,
    last: u64,
    /// Connections closed since the last line about it, and when that was.
    closed: u64,
    told_at: Option<Instant>,
}

/// All connections.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    state: Arc<Mutex<State>>,
    most: usize,
    most_of_peer: usize,
    slow: Duration,
}

impl Connections {
    /// So many at the most, and so many of one peer. Who takes so long for an answer may have to go.
    pub(super) fn new(most: usize, most_of_peer: usize, slow: Duration) -> Self {
        Self { state: Arc::default(), most, most_of_peer, slow }
    }

    /// Nothing that runs under the lock can panic half-way through a change.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What runs a connection, to be ended when it has to go.
    pub(super) fn run_by(&self, number: u64, task: AbortHandle) {
        if let Some(one) = self.lock().connections.get_mut(&number) {
            one.task = Some(task);
        }
    }

    /// A place for a new connection, for which an older one may have to go; nothing if all are being answered, and none of
    /// them is slow.
    pub(super) fn admit(&self, peer: Peer) -> Option<Place> {
        let mut state = self.lock();
        let of_peer = state.connections.values().filter(|one| one.peer == peer).count();
        let has_room = if of_peer >= self.most_of_peer {
            state.close_one(Some(peer), self.slow)
        } else {
            state.connections.len() < self.most || state.close_one(None, self.slow)
        };
        state.closed += u64::from(!has_room);
        if let Some(closed) = state.take_untold() {
            tracing::warn!(
                "too many connections are open ({} at most, {} of one address or user): {closed} were closed that sent no \
                 request or took no answer, or refused",
                self.most,
                self.most_of_peer
            );
        }
        if !has_room {
            return None;
        }
        state.last += 1;
        let number = state.last;
        state.connections.insert(number, Connection::of(peer));
        Some(Place { all: self.clone(), number })
    }
}

impl State {
    /// Closes the connection that has earned its place least.
    fn close_one(&mut self, of: Option<Peer>, slow: Duration) -> bool {
        let candidates = || self.connections.iter().filter(move |(_, one)| of.is_none_or(|peer| peer == one.peer));
        // An answer is out of `open` as soon as the last part of it waits for room.
        let idle = candidates().filter(|(_, one)| one.open == 0 && one.taking.since.is_none());
        let idle = idle.min_by_key(|(number, one)| (one.requests > 0, **number)).map(|(number, _)| *number);
        let slowest = || {
            let taking = candidates().map(|(number, one)| (*number, one.taking));
            let slow = taking.filter(|(_, taking)| taking.time() >= slow);
            slow.min_by_key(|(number, taking)| (taking.bytes_per_second(), *number)).map(|(number, _)| number)
        };
        let Some(number) = idle.or_else(slowest) else { return false };
        if let Some(task) = self.connections.remove(&number).and_then(|one| one.task) {
            task.abort();
        }
        self.closed += 1;
        true
    }

    /// How many were closed since that was said last, if it is time to say so.
    fn take_untold(&mut self) -> Option<u64> {
        let is_due = self.told_at.is_none_or(|at| at.elapsed() >= WARN_EVERY);
        if self.closed == 0 || !is_due {
            return None;
        }
        self.told_at = Some(Instant::now());
        Some(std::mem::take(&mut self.closed))
    }
}

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    all: Connections,
    pub(super) number: u64,
}

impl Place {
    /// It has sent a whole request, which is being answered until what is returned is dropped.
    pub(super) fn answering(self: &Arc<Self>) -> Answering {
        self.change(|one| {
            one.requests += 1;
            one.open += 1;
        });
        Answering(Arc::clone(self))
    }

    /// Its end has no room for all of an answer.
    pub(super) fn waits(&self) {
        self.change(|one| one.taking.since = Some(Instant::now()));
    }

    /// So much more of it has been taken.
    pub(super) fn takes(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.change(|one| one.taking.bytes = one.taking.bytes.saturating_add(bytes));
    }

    /// All of it has.
    pub(super) fn has_taken(&self) {
        self.change(|one| one.taking = one.taking.between_answers());
    }

    fn change(&self, change: impl FnOnce(&mut Connection)) {
        if let Some(one) = self.all.lock().connections.get_mut(&self.number) {
            change(one);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.lock().connections.remove(&self.number);
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct Answering(Arc<Place>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.change(|one| one.open = one.open.saturating_sub(1));
    }
}

/// An answer's body, which is being taken until it is dropped.
pub(super) struct Taken {
    pub(super) body: Body,
    pub(super) _answering: Answering,
}

impl hyper::body::Body for Taken {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_secs(10);

    fn peer(last: u8) -> Peer {
        Peer::at([10, 0, 0, last].into())
    }

    fn numbers(connections: &Connections) -> Vec<u64> {
        connections.lock().connections.keys().copied().collect()
    }

    #[test]
    fn the_oldest_that_has_sent_no_request_makes_room_and_who_is_answered_stays() {
        let all = Connections::new(3, 3, SLOW);
        let [one, two, three] = [1, 2, 3].map(|of| Arc::new(all.admit(peer(of)).unwrap()));
        let answering = one.answering();
        drop(two.answering());
        let four = Arc::new(all.admit(peer(4)).unwrap());
        assert_eq!(numbers(&all), [1, 2, 4], "the third was the only one without a request");
        let _of_four = four.answering();
        let five = Arc::new(all.admit(peer(5)).unwrap());
        assert_eq!(numbers(&all), [1, 4, 5], "the second waits for its next request");
        let _of_five = five.answering();
        assert!(all.admit(peer(6)).is_none(), "all are being answered");
        drop(answering);
        assert!(all.admit(peer(6)).is_some());
        drop((one, two, three));
    }

    #[test]
    fn where_all_are_being_answered_the_slowest_makes_room() {
        let all = Connections::new(3, 3, SLOW);
        let places = [1, 2, 3].map(|of| Arc::new(all.admit(peer(of)).unwrap()));
        let answering = places.each_ref().map(|place| place.answering());
        places.iter().for_each(|place| place.waits());
        assert!(all.admit(peer(4)).is_none(), "none of them has had the time to take it");
        let ago = |time| Instant::now().checked_sub(time).unwrap();
        for (number, since, bytes) in [(1, ago(SLOW * 3), 10_000_000), (2, ago(SLOW * 2), 100), (3, ago(SLOW / 2), 0)] {
            let mut state = all.lock();
            let one = state.connections.get_mut(&number).unwrap();
            one.taking = Taking { since: Some(since), before: Duration::ZERO, bytes };
        }
        let four = Arc::new(all.admit(peer(4)).unwrap());
        assert_eq!(numbers(&all), [1, 3, 4], "the second has taken next to nothing");
        let of_four = four.answering();
        places[0].has_taken();
        assert!(all.admit(peer(5)).is_none(), "the first has it, the third has some time left");
        places[0].waits();
        places[0].takes(5);
        assert_eq!(all.lock().connections[&1].taking.bytes, 5);
        drop(answering);
        assert!(all.admit(peer(5)).is_none(), "what is still on its way to them is being answered");
        drop((places, of_four));
    }

    #[test]
    fn who_takes_each_of_many_answers_just_in_time_is_slow_all_the_same() {
        let all = Connections::new(2, 2, SLOW);
        let places = [1, 2].map(|of| Arc::new(all.admit(peer(of)).unwrap()));
        let answering = places.each_ref().map(|place| place.answering());
        let half = Instant::now().checked_sub(SLOW / 2).unwrap();
        for _ in 0..4 {
            for (place, bytes) in places.iter().zip([50_000, 50_000_000]) {
                place.waits();
                all.lock().connections.get_mut(&place.number).unwrap().taking.since = Some(half);
                place.takes(bytes);
                place.has_taken();
            }
        }
        let three = Arc::new(all.admit(peer(3)).unwrap());
        assert_eq!(numbers(&all), [2, 3], "the first is being answered, as the second is, and was never late");
        let of_three = three.answering();
        assert!(all.admit(peer(4)).is_none(), "who takes much is never slow, however often he waits");
        drop((answering, places, of_three));
    }

    #[test]
    fn one_peer_s_connections_take_the_places_of_his_own() {
        let all = Connections::new(10, 4, SLOW);
        let other = all.admit(peer(1)).unwrap();
        let many: Vec<_> = (0..50).map(|_| all.admit(peer(2)).unwrap()).collect();
        assert_eq!(numbers(&all), [1, 48, 49, 50, 51]);
        assert_eq!(Peer::at("fd00::1".parse().unwrap()), Peer::at("fd00::2:3:4:5".parse().unwrap()));
        assert_eq!(Peer::at("::ffff:10.0.0.1".parse().unwrap()), peer(1));
        let local =
            ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.9"].map(|address| Peer::at(address.parse().unwrap()));
        assert_eq!(local, [local[0]; 4], "one user may connect from each of them");
        drop((other, many));
        assert!(numbers(&all).is_empty());
    }

    #[test]
    fn closed_connections_are_told_of_once_a_minute_with_their_count() {
        let mut state = State { closed: 3, ..State::default() };
        assert_eq!(state.take_untold(), Some(3));
        state.closed = 5_000;
        assert_eq!(state.take_untold(), None, "told just now");
        state.told_at = Instant::now().checked_sub(WARN_EVERY);
        assert_eq!((state.take_untold(), state.take_untold()), (Some(5_000), None));
    }
}
