//! Who uses how much of the server.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::config::Limits;
use super::lock;
use super::rpc::{BUSY, RpcError};

/// What counts as one user of the server: an IPv4 address or an IPv6 /64.
pub(crate) type Group = [u8; 8];

/// The group of an address; `None` for loopback, behind which anybody may be.
pub(crate) fn group(address: IpAddr) -> Option<Group> {
    match address.to_canonical() {
        address if address.is_loopback() => None,
        IpAddr::V4(v4) => {
            // Not a /64 that is ever routed.
            let mut group = [0xff; 8];
            group[4..].copy_from_slice(&v4.octets());
            Some(group)
        }
        IpAddr::V6(v6) => v6.octets()[..8].try_into().ok(),
    }
}

/// What all clients together use.
#[derive(Debug)]
pub(crate) struct Peers {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    connections: usize,
    subscriptions: usize,
    groups: HashMap<Group, Usage>,
}

#[derive(Debug)]
struct Usage {
    connections: usize,
    subscriptions: usize,
    tokens: Tokens,
}

/// A bucket of tokens that fills up with time.
#[derive(Debug)]
struct Tokens {
    left: f64,
    at: Instant,
}

impl Tokens {
    fn new(limits: &Limits) -> Self {
        Self { left: limits.request_tokens, at: Instant::now() }
    }

    fn refill(&mut self, limits: &Limits) {
        let now = Instant::now();
        let refill = now.duration_since(self.at).as_secs_f64() * limits.request_tokens_per_second;
        self.at = now;
        self.left = (self.left + refill).min(limits.request_tokens);
    }

    /// How long the next request must wait.
    fn wait(&mut self, limits: &Limits) -> Result<Duration, RpcError> {
        self.refill(limits);
        let wait = if self.left >= 0.0 { 0.0 } else { -self.left / limits.request_tokens_per_second };
        // A rate of zero makes it infinite.
        if wait > limits.request_delay.as_secs_f64() {
            return Err(RpcError::new(
                BUSY,
                format!(
                    "too many requests: {} at once and {} per second are allowed from one address",
                    limits.request_tokens, limits.request_tokens_per_second
                ),
            ));
        }
        Ok(Duration::from_secs_f64(wait))
    }

    /// Takes tokens. There can be too few, but not so many that a client is shut out for long.
    fn charge(&mut self, cost: f64, limits: &Limits) {
        self.refill(limits);
        let longest = 2.0 * limits.request_delay.as_secs_f64() + 1.0;
        self.left = (self.left - cost).max(-longest * limits.request_tokens_per_second);
    }
}

/// A connection that counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    peers: Arc<Peers>,
    group: Option<Group>,
    /// Tokens of a connection that has no group.
    own: Mutex<Tokens>,
    subscriptions: Mutex<usize>,
}

impl Peers {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default() })
    }

    pub(crate) fn connections(&self) -> usize {
        lock(&self.state).connections
    }

    /// A place for a new connection.
    pub(crate) fn seat(self: &Arc<Self>, address: IpAddr) -> Result<Seat, RpcError> {
        let group = group(address);
        let mut state = lock(&self.state);
        if state.connections >= self.limits.connections {
            let text = format!("too many connections: the server takes {}", self.limits.connections);
            return Err(RpcError::new(BUSY, text).and_close());
        }
        if let Some(group) = group {
            let usage = state.groups.entry(group).or_insert_with(|| Usage {
                connections: 0,
                subscriptions: 0,
                tokens: Tokens::new(&self.limits),
            });
            if usage.connections >= self.limits.connections_per_address {
                let limit = self.limits.connections_per_address;
                let text = format!("too many connections from your address: the server takes {limit}");
                return Err(RpcError::new(BUSY, text).and_close());
            }
            usage.connections += 1;
        }
        state.connections += 1;
        drop(state);
        let own = Mutex::new(Tokens::new(&self.limits));
        Ok(Seat { peers: Arc::clone(self), group, own, subscriptions: Mutex::new(0) })
    }
}

impl Seat {
    /// How long the next request must wait, or that it can't be answered.
    pub(crate) fn wait(&self) -> Result<Duration, RpcError> {
        self.tokens(|tokens, limits| tokens.wait(limits))
    }

    /// Pays for a request that was answered.
    pub(crate) fn charge(&self, cost: f64) {
        self.tokens(|tokens, limits| tokens.charge(cost, limits));
    }

    fn tokens<T>(&self, act: impl FnOnce(&mut Tokens, &Limits) -> T) -> T {
        let limits = &self.peers.limits;
        let mut state = lock(&self.peers.state);
        match self.group.and_then(|group| state.groups.get_mut(&group)) {
            Some(usage) => act(&mut usage.tokens, limits),
            None => act(&mut lock(&self.own), limits),
        }
    }

    /// Counts one more subscription.
    pub(crate) fn subscribe(&self) -> Result<(), RpcError> {
        let limits = &self.peers.limits;
        let full = |limit: usize, whose| {
            Err(RpcError::bad(format!("too many subscriptions: {limit} are allowed {whose}")))
        };
        let mut own = lock(&self.subscriptions);
        if *own >= limits.subscriptions_per_connection {
            return full(limits.subscriptions_per_connection, "for a connection");
        }
        let mut state = lock(&self.peers.state);
        if state.subscriptions >= limits.subscriptions {
            return full(limits.subscriptions, "for all clients together");
        }
        if let Some(usage) = self.group.and_then(|group| state.groups.get_mut(&group)) {
            if usage.subscriptions >= limits.subscriptions_per_address {
                return full(limits.subscriptions_per_address, "for one address");
            }
            usage.subscriptions += 1;
        }
        state.subscriptions += 1;
        *own += 1;
        Ok(())
    }

    /// Counts one less.
    pub(crate) fn unsubscribe(&self) {
        let mut own = lock(&self.subscriptions);
        *own = own.saturating_sub(1);
        let mut state = lock(&self.peers.state);
        state.subscriptions = state.subscriptions.saturating_sub(1);
        if let Some(usage) = self.group.and_then(|group| state.groups.get_mut(&group)) {
            usage.subscriptions = usage.subscriptions.saturating_sub(1);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let own = *lock(&self.subscriptions);
        let mut guard = lock(&self.peers.state);
        let state = &mut *guard;
        state.connections = state.connections.saturating_sub(1);
        state.subscriptions = state.subscriptions.saturating_sub(own);
        if let Some(usage) = self.group.and_then(|group| state.groups.get_mut(&group)) {
            usage.connections = usage.connections.saturating_sub(1);
            usage.subscriptions = usage.subscriptions.saturating_sub(own);
        }
        // An address is forgotten once its tokens are back, so that reconnecting gives no new ones.
        let limits = &self.peers.limits;
        if state.groups.len() > 2 * limits.connections.max(64) || own > 0 || state.connections == 0 {
            state.groups.retain(|_, usage| {
                usage.connections > 0
                    || usage.tokens.left
                        + usage.tokens.at.elapsed().as_secs_f64() * limits.request_tokens_per_second
                        < limits.request_tokens
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Bug class 16: limits that a client evades by using another address of its own.
    #[test]
    fn addresses_count_by_64_bits_and_loopback_not_at_all() {
        assert_eq!(group(ip("2001:db8::1")), group(ip("2001:db8::ffff:2")));
        assert_ne!(group(ip("2001:db8::1")), group(ip("2001:db8:0:1::1")));
        assert_eq!(group(ip("::ffff:192.0.2.1")), group(ip("192.0.2.1")));
        assert_ne!(group(ip("192.0.2.1")), group(ip("192.0.2.2")));
        for loopback in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(group(ip(loopback)), None);
        }
    }

    #[test]
    fn connections_are_counted_and_given_back() {
        let limits = Limits { connections: 3, connections_per_address: 2, ..Limits::default() };
        let peers = Peers::new(limits);
        let first = peers.seat(ip("192.0.2.1")).unwrap();
        let _second = peers.seat(ip("192.0.2.1")).unwrap();
        assert!(peers.seat(ip("192.0.2.1")).unwrap_err().message.contains("from your address"));
        let _third = peers.seat(ip("::1")).unwrap();
        assert!(peers.seat(ip("::1")).unwrap_err().message.contains("the server takes 3"));
        drop(first);
        assert!(peers.seat(ip("192.0.2.1")).is_ok());
    }

    #[test]
    fn subscriptions_are_counted_and_given_back() {
        let limits = Limits {
            subscriptions: 4,
            subscriptions_per_address: 3,
            subscriptions_per_connection: 2,
            ..Limits::default()
        };
        let peers = Peers::new(limits);
        let [a, b] = [0; 2].map(|_| peers.seat(ip("192.0.2.1")).unwrap());
        let other = peers.seat(ip("192.0.2.2")).unwrap();
        a.subscribe().unwrap();
        a.subscribe().unwrap();
        assert!(a.subscribe().unwrap_err().message.contains("for a connection"));
        b.subscribe().unwrap();
        assert!(b.subscribe().unwrap_err().message.contains("for one address"));
        other.subscribe().unwrap();
        assert!(other.subscribe().unwrap_err().message.contains("for all clients"));
        drop(a);
        other.subscribe().unwrap();
        other.unsubscribe();
        b.subscribe().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_before_they_are_refused_and_reconnecting_does_not_help() {
        let limits = Limits {
            request_tokens: 10.0,
            request_tokens_per_second: 2.0,
            request_delay: Duration::from_secs(3),
            ..Limits::default()
        };
        let peers = Peers::new(limits);
        let seat = peers.seat(ip("192.0.2.1")).unwrap();
        seat.charge(10.0);
        assert_eq!(seat.wait(), Ok(Duration::ZERO));
        seat.charge(4.0);
        assert_eq!(seat.wait(), Ok(Duration::from_secs(2)));
        seat.charge(1000.0);
        assert!(seat.wait().unwrap_err().message.contains("too many requests"));
        drop(seat);
        let seat = peers.seat(ip("192.0.2.1")).unwrap();
        assert!(seat.wait().is_err());
        assert_eq!(peers.seat(ip("192.0.2.2")).unwrap().wait(), Ok(Duration::ZERO));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(seat.wait(), Ok(Duration::ZERO));
    }
}
