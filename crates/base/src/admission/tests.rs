use std::net::Ipv4Addr;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn limits() -> AdmissionLimits {
    AdmissionLimits {
        connections_max: 8,
        unauthenticated_max: 4,
        unauthenticated_per_address_max: 2,
        connections_per_organization_max: 4,
        connections_per_identity_max: 2,
        handshake_time_max: Duration::from_secs(2),
        unauthenticated_bytes_max: 100,
        unauthenticated_bytes_per_address_max: 60,
        bytes_per_organization_max: 200,
    }
}

fn host(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

fn is_open(admitted: &AdmissionPermit) -> bool {
    !admitted.displaced().is_cancelled()
}

/// Regression: 300 silent sockets used up all connections of a port, and no peer could connect to it any more.
#[test]
fn the_oldest_stranger_gives_its_place_to_a_newcomer() {
    let admission = Admission::new(limits());
    let silent: Vec<_> = (0..4).map(|host_number| admission.admit(host(host_number))).collect();
    assert!(silent.iter().all(is_open));
    let newcomer = admission.admit(host(9));
    assert!(!is_open(&silent[0]) && silent[1..].iter().all(is_open) && is_open(&newcomer));
}

#[test]
fn an_address_over_its_share_displaces_itself() {
    let admission = Admission::new(limits());
    let honest = admission.admit(host(1));
    let flood: Vec<_> = (0..50).map(|_| admission.admit(host(2))).collect();
    assert!(is_open(&honest));
    assert_eq!(flood.iter().filter(|admitted| is_open(admitted)).count(), 2);
}

#[test]
fn hosts_of_one_ipv6_network_are_one_address() {
    let admission = Admission::new(limits());
    let flood: Vec<_> =
        (0..9_u16).map(|suffix| admission.admit(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, suffix).into())).collect();
    assert_eq!(flood.iter().filter(|admitted| is_open(admitted)).count(), 2);
}

#[test]
fn a_member_is_never_displaced_by_strangers() {
    let admission = Admission::new(limits());
    let member = admission.admit(host(1));
    member.authenticate(Principal::new("Org1MSP", "peer0"));
    let flood: Vec<_> = (0..200).map(|number| admission.admit(host(number))).collect();
    assert!(is_open(&member));
    assert_eq!(flood.iter().filter(|admitted| is_open(admitted)).count(), 4);
}

#[test]
fn an_organisation_over_its_share_displaces_its_own_oldest() {
    let admission = Admission::new(limits());
    let other = admission.admit(host(1));
    other.authenticate(Principal::new("Org2MSP", "peer0"));
    let greedy: Vec<_> = (0..6_u8)
        .map(|number| {
            let admitted = admission.admit(host(number));
            admitted.authenticate(Principal::new("Org1MSP", &format!("user{number}")));
            admitted
        })
        .collect();
    assert!(is_open(&other));
    assert_eq!(greedy.iter().map(is_open).collect::<Vec<_>>(), [false, false, true, true, true, true]);
}

#[test]
fn an_identity_over_its_share_displaces_its_own_oldest() {
    let admission = Admission::new(limits());
    let many: Vec<_> = (0..3_u8)
        .map(|number| {
            let admitted = admission.admit(host(number));
            admitted.authenticate(Principal::new("Org1MSP", "user1"));
            admitted
        })
        .collect();
    assert_eq!(many.iter().map(is_open).collect::<Vec<_>>(), [false, true, true]);
}

#[test]
fn a_listener_full_of_members_turns_strangers_away() {
    let admission = Admission::new(limits());
    let members: Vec<_> = (0..8_u8)
        .map(|number| {
            let admitted = admission.admit(host(number));
            admitted.authenticate(Principal::new(if number < 4 { "Org1MSP" } else { "Org2MSP" }, &format!("{number}")));
            admitted
        })
        .collect();
    assert!(!is_open(&admission.admit(host(9))));
    assert!(members.iter().all(is_open));
}

#[test]
fn bytes_count_against_the_address_then_against_the_organisation() {
    let admission = Admission::new(limits());
    let (first, second) = (admission.admit(host(1)), admission.admit(host(2)));
    let held = first.reserve(60).expect("the address's share");
    assert_eq!(first.reserve(1).expect_err("over the limit").limit, 60);
    assert_eq!(second.reserve(41).expect_err("over the limit").limit, 100);
    first.authenticate(Principal::new("Org1MSP", "user1"));
    let more = first.reserve(200).expect("the organisation's budget");
    assert!(first.reserve(1).is_err());
    drop((held, more));
    assert_eq!(admission.reserved_bytes(), 0);
    assert!(second.reserve(usize::MAX).is_err());
}

/// Regression: five messages that were never finished used up the byte budget of a port, and every message of some length was
/// rejected while the port waited for them.
#[test]
fn a_claim_displaces_the_stranger_that_has_held_bytes_for_longest() {
    let admission = Admission::new(limits());
    let (first, second, newcomer) = (admission.admit(host(1)), admission.admit(host(2)), admission.admit(host(1)));
    let held = [first.reserve(30), second.reserve(40), first.reserve(30)].map(|held| held.expect("room"));
    assert!(newcomer.reserve(1).is_err(), "a reservation displaces nobody");
    let claimed = newcomer.claim(50).expect("the first gives way");
    assert!(!is_open(&first) && is_open(&second));
    assert_eq!(admission.reserved_bytes(), 90);
    assert!(newcomer.claim(61).is_err() && is_open(&second), "more than an address may have displaces nobody");
    assert!(second.claim(30).is_err(), "the one that has held bytes for longest displaces nobody");
    drop(held);
    assert_eq!(admission.reserved_bytes(), 50);
    drop(claimed);
    assert_eq!(admission.reserved_bytes(), 0);
}

#[test]
fn a_claim_displaces_no_member() {
    let admission = Admission::new(limits());
    let (member, newcomer) = (admission.admit(host(1)), admission.admit(host(1)));
    let _held = member.reserve(60).expect("room");
    member.authenticate(Principal::new("Org1MSP", "user1"));
    assert!(newcomer.claim(1).is_err());
    assert!(is_open(&member));
}

#[test]
fn spare_bytes_leave_half_of_the_budget() {
    let admission = Admission::new(limits());
    let member = admission.admit(host(1));
    member.authenticate(Principal::new("Org1MSP", "user1"));
    let _needed = member.reserve(50).expect("room");
    let _spare = member.reserve_spare(50).expect("half of the budget");
    assert!(member.reserve_spare(1).is_err());
    assert!(member.reserve(100).is_ok());
}

#[derive(Clone, Debug)]
enum Act {
    Admit(u8),
    Authenticate(usize, u8, u8),
    Reserve(usize, usize),
    Claim(usize, usize),
    Drop(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..4_u8).prop_map(Act::Admit),
        2 => (0..12_usize, 0..3_u8, 0..3_u8).prop_map(|(at, organization, user)| Act::Authenticate(at, organization, user)),
        2 => (0..12_usize, 0..120_usize).prop_map(|(at, bytes)| Act::Reserve(at, bytes)),
        2 => (0..12_usize, 0..120_usize).prop_map(|(at, bytes)| Act::Claim(at, bytes)),
        1 => (0..12_usize).prop_map(Act::Drop),
    ]
}

proptest! {
    #[test]
    fn accounts_stay_within_the_limits_and_end_empty(acts in prop::collection::vec(act(), 1..200)) {
        let admission = Admission::new(limits());
        let mut connections: Vec<(AdmissionPermit, Vec<Reservation>)> = Vec::new();
        for act in acts {
            match act {
                Act::Admit(address) => connections.push((admission.admit(host(address)), Vec::new())),
                Act::Authenticate(at, organization, user) => {
                    if let Some((admitted, _)) = connections.get(at) {
                        admitted.authenticate(Principal::new(&organization.to_string(), &user.to_string()));
                    }
                }
                Act::Reserve(at, bytes) => {
                    if let Some((admitted, held)) = connections.get_mut(at) {
                        held.extend(admitted.reserve(bytes));
                    }
                }
                Act::Claim(at, bytes) => {
                    if let Some((admitted, held)) = connections.get_mut(at) {
                        held.extend(admitted.claim(bytes));
                    }
                }
                Act::Drop(at) if at < connections.len() => drop(connections.remove(at)),
                Act::Drop(_) => {}
            }
            connections.retain(|(admitted, _)| is_open(admitted));
            let (strangers, members) = admission.open();
            prop_assert!(strangers <= 4 && strangers + members <= 8);
            prop_assert_eq!(strangers + members, connections.len());
            prop_assert!(admission.accounts().unauthenticated_bytes <= 100);
        }
        drop(connections);
        prop_assert_eq!(admission.open(), (0, 0));
        prop_assert_eq!(admission.reserved_bytes(), 0);
        let accounts = admission.accounts();
        prop_assert!(accounts.authenticated_by_organization.is_empty() && accounts.unauthenticated_by_address.is_empty());
        prop_assert!(accounts.authenticated_by_identity.is_empty() && accounts.bytes.is_empty());
        prop_assert!(accounts.stranger_bytes.is_empty() && accounts.holding.is_empty());
    }
}
