//! What a database must do for the log and the accounts, whichever it is: the same cases over an SQLite file and a real
//! Postgres server, and over Postgres alone what only a server and a network can do.

mod accounts;
mod appends;
mod connecting;
mod faults;
mod gates;
mod outage;
mod proxy;
mod reading;
mod sandboxes;
mod sessions;
mod writers;

/// Each case once over each database.
macro_rules! cases {
    ($($module:ident: $($case:ident),+ $(,)?;)+) => {
        mod sqlite {
            $(mod $module {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let fixture = crate::fixture::Fixture::sqlite().await;
                    crate::conformance::$module::$case(&fixture).await;
                    fixture.end().await;
                })+
            })+
        }
        mod postgres {
            $(mod $module {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let fixture = crate::fixture::Fixture::postgres().await;
                    crate::conformance::$module::$case(&fixture).await;
                    fixture.end().await;
                })+
            })+
        }
    };
}

cases! {
    writers:
        numbers_have_no_hole_under_twenty_writers,
        a_caller_that_leaves_stops_nothing,
        many_sessions_are_written_at_once;
    appends:
        an_old_owner_writes_nothing,
        a_call_goes_on_only_as_itself,
        a_call_is_recorded_with_its_end,
        an_idempotency_key_opens_one_call,
        a_refused_append_leaves_nothing_behind,
        payloads_come_back_as_they_were;
    gates:
        a_free_gate_opens_once,
        a_pause_is_its_owners_until_it_expires,
        a_revoked_keys_pause_is_over;
    sessions:
        of_two_that_take_one_wins,
        crash_takeovers_are_counted,
        closing_has_two_steps_and_one_end,
        a_closing_that_another_finished_ends_no_stream_early,
        a_failed_session_takes_nothing,
        only_ended_sessions_are_removed,
        clients_join_and_register,
        an_unknown_session_is_not_found;
    reading:
        pages_go_on_where_the_last_ended,
        large_events_cut_a_page,
        requests_are_whole,
        a_session_is_folded_from_its_compaction,
        a_reader_sees_each_event_once_in_order;
    accounts:
        profiles_are_made_read_replaced_and_deleted,
        a_profile_with_active_keys_cannot_be_deleted,
        no_key_is_made_for_a_profile_that_is_just_deleted,
        lists_go_page_by_page_without_gap_or_repetition,
        a_revoked_key_takes_its_session_keys_along,
        use_is_noted_at_most_once_a_minute,
        one_admin_key_is_made_however_many_try,
        a_closing_session_is_listed_as_closed;
    sandboxes:
        a_session_has_one_sandbox,
        a_sandbox_changes_from_the_state_that_it_is_in,
        a_sandbox_that_was_left_is_claimed_once,
        a_subagent_ends_once,
        images_are_provisioned_by_one_node,
        a_duty_is_one_nodes;
}
