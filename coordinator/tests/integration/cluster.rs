//! What a cluster must do, in one process or through Redis: the same cases over both, and over several nodes and a real
//! `redis-server` alone what only they can do.

mod both;
mod calls;
mod frames;
mod leases;
mod outage;
mod servers;
mod test_cluster;

use test_cluster::TestCluster;

/// Each case once over each backend.
macro_rules! cases {
    ($($case:ident),+ $(,)?) => {
        mod local {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let mut test = crate::cluster::TestCluster::local().await;
                crate::cluster::both::$case(&mut test).await;
                test.end().await;
            })+
        }
        mod redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let mut test = crate::cluster::TestCluster::redis(1).await;
                crate::cluster::both::$case(&mut test).await;
                test.end().await;
            })+
        }
    };
}

cases! {
    calls_start_in_the_order_of_their_arrival,
    only_so_many_wait,
    a_call_that_was_left_never_starts,
    a_claimed_call_is_not_dropped,
    nothing_is_given_back_for_nobody,
    a_call_that_is_given_back_keeps_its_place,
    a_retry_joins_the_first,
    a_pause_answers_compacts_and_waits_for_its_owner,
    an_owners_answer_comes_first_past_the_deadline,
    a_stop_answers_everybody,
    a_revoked_keys_calls_are_dropped,
    one_lease_at_a_time,
    a_lease_with_waiting_calls_is_not_given_up,
    an_owner_that_panicked_is_replaced,
    calls_are_served_again_right_after_a_release,
}
