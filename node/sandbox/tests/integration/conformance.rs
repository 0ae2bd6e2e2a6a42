//! What every driver must do: the same cases over each runtime.

mod commands;
mod ending;
mod limits;
mod sandboxes;
mod subagents;

/// Each case once over a runtime.
macro_rules! cases {
    ($runtime:ident; $($module:ident: $($case:ident),+ $(,)?;)+) => {
        mod $runtime {
            $(mod $module {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let fixture = crate::fixture::Fixture::$runtime();
                    crate::conformance::$module::$case(&fixture).await;
                    fixture.end().await;
                })+
            })+
        }
    };
}

macro_rules! all_over {
    ($runtime:ident) => {
        cases! {
            $runtime;
            sandboxes:
                starting_twice_gives_one,
                many_starts_at_once_give_one,
                another_containers_name_is_not_taken,
                stopping_is_final_and_can_be_repeated,
                one_that_was_removed_by_hand_is_gone_and_starts_again,
                an_unknown_image_is_named,
                a_shell_is_needed,
                a_bad_id_is_refused,
                all_of_the_deployment_are_listed,
                it_ends_at_its_maximum_age,
                many_are_started_and_stopped;
            commands:
                outputs_and_exit_code_are_apart,
                standard_input_is_empty,
                binary_output_is_text,
                much_output_is_cut,
                a_hundred_at_once,
                what_is_left_behind_does_not_hold_the_call,
                a_long_script_is_refused,
                a_program_that_waits_for_all_its_children_ends;
            ending:
                a_timeout_ends_all_of_its_session,
                a_timeout_ends_what_left_the_session,
                a_dropped_call_ends_the_command,
                a_command_that_ignores_signals_is_ended,
                signals_of_the_command_do_not_reach_the_watcher,
                the_keeper_survives_commands,
                of_two_commands_one_is_ended,
                stopping_during_a_command_says_so;
            limits:
                a_memory_hog_ends,
                a_fork_bomb_stays_within_the_limit,
                a_fork_bomb_is_ended_with_its_time,
                nothing_can_be_gained,
                there_is_no_network;
            subagents:
                a_prompt_arrives_byte_for_byte,
                the_prompt_is_in_no_description,
                outputs_are_capped_apart,
                exit_codes_are_kept,
                a_timeout_ends_it_without_a_node,
                what_it_leaves_behind_is_ended,
                cancelling_leaves_nothing,
                launching_twice_runs_once,
                launches_that_race_run_once,
                one_that_was_never_started_is_known,
                one_that_runs_out_of_memory_says_so,
                a_fork_bomb_ends_with_its_time,
                an_unknown_image_is_refused,
                an_unknown_subagent_is_gone,
                what_looks_like_a_command_stays_text;
        }
    };
}

all_over!(docker);
all_over!(kubernetes);
