//! Calls over real sockets: delivery, retransmission and refusals. Each test is a function of the
//! transport by which its ends are connected; the tables below assign tests to transports.
//! `cargo test -p net rpc::tls::calls` runs the tests of one file over one transport.

mod addresses;
mod calls;
mod cancel;
mod endless_answers;
mod hostile;
mod long_answers;
mod lost_connections;
mod others_numbers;
mod proxy;
pub mod raw;
mod restarts;
mod room;
mod silence;
mod stop;
pub mod support;
mod time_outs;
mod unchecked;
mod until;
pub mod way;

/// Makes tests of the functions in these modules, over one transport.
macro_rules! tests_over {
    ($way:ident; $($module:ident: $($test:ident),+;)+) => {$(
        mod $module {
            use crate::rpc::{$module as cases, way::Way};

            $(
                #[test]
                fn $test() {
                    cases::$test(Way::$way);
                }
            )+
        }
    )+};
}

/// The tests that run over every transport.
macro_rules! tests_of_every_way {
    ($way:ident) => {
        tests_over! {
            $way;
            addresses:
                the_next_address_is_taken_when_the_first_is_dead,
                new_addresses_are_used_by_calls_that_already_wait,
                where_a_peer_is_is_looked_up_before_each_try,
                a_lookup_that_hangs_holds_up_no_call,
                connections_to_addresses_of_before_are_ended,
                an_address_is_tried_without_a_call,
                who_waits_for_a_peer_is_told_why,
                a_client_of_another_cluster_is_refused_at_once,
                each_core_has_a_connection_of_its_own,
                only_addresses_in_the_networks_are_used,
                cores_spread_over_addresses_that_are_equally_good;
            calls:
                an_answer_comes_back,
                errors_keep_their_message_and_hint,
                payloads_of_all_sizes_arrive_whole_among_many_calls,
                bodies_may_be_longer_than_what_is_staged,
                what_is_too_large_for_a_frame_is_refused_here,
                a_write_that_is_given_up_in_the_middle_harms_no_other,
                a_call_that_is_given_up_leaves_its_buffer_alone,
                frames_may_arrive_in_pieces_of_any_size;
            cancel:
                a_dropped_wait_ends_at_the_server_and_frees_its_place,
                work_that_does_not_wait_runs_to_its_end;
            long_answers:
                an_answer_may_be_longer_than_a_frame;
            restarts:
                calls_survive_a_server_that_dies_and_comes_back;
            stop:
                a_stop_lets_running_requests_be_answered,
                a_stop_ends_waits_and_closes_the_door,
                an_address_that_is_taken_is_named;
            time_outs:
                a_call_that_is_never_answered_times_out_and_the_connection_stays,
                calls_that_timed_out_hold_no_room_for_the_data_of_others,
                requests_beyond_the_credits_wait_and_time_out,
                calls_that_wait_leave_room_for_others,
                who_cannot_be_reached_is_named_with_the_reason,
                a_wait_outlasts_the_time_out;
            unchecked:
                what_differs_from_its_checksum_is_asked_for_again,
                a_part_of_a_block_is_checked_by_the_server;
        }
    };
}

/// The tests that need a network between the ends: they cut it, and alter its traffic.
macro_rules! tests_of_networks {
    ($way:ident) => {
        tests_over! {
            $way;
            hostile:
                garbage_ends_the_connection_and_nothing_else,
                a_connection_that_breaks_off_in_a_frame_is_forgotten,
                a_request_that_cannot_be_understood_is_refused_and_the_connection_stays,
                more_requests_than_allowed_end_the_connection,
                two_requests_that_wait_under_one_number_end_the_connection,
                who_asks_for_signs_of_life_and_does_not_read_them_is_not_read_either,
                a_flipped_bit_on_the_way_to_the_server_is_noticed,
                a_flipped_bit_on_the_way_to_the_client_is_noticed_and_repaired,
                nobody_takes_a_payload_that_neither_end_has_checked,
                a_server_that_answers_what_was_not_asked_is_left;
            lost_connections:
                no_copy_of_a_request_runs_beside_an_older_one_when_both_ends_notice,
                no_copy_of_a_request_runs_beside_an_older_one_when_only_the_client_notices,
                a_request_that_hangs_does_not_keep_its_client_out_for_longer_than_its_time_out,
                bulk_transfers_survive_cuts,
                an_older_connection_is_refused;
            silence:
                a_silent_server_is_left_for_another_connection,
                an_address_by_which_only_little_comes_through_is_left_for_another,
                a_server_that_works_for_long_is_not_taken_for_dead,
                a_client_that_vanished_is_given_up_and_a_quiet_one_is_not,
                who_is_beyond_the_connections_of_a_server_hears_it_and_gets_in_when_another_has_gone,
                a_server_with_little_memory_serves_one_after_the_other,
                a_client_that_waits_for_room_at_the_server_keeps_its_connection,
                small_requests_get_through_while_there_is_no_room_for_large_ones,
                a_client_that_waits_for_room_can_come_back_by_another_connection,
                a_client_that_asks_and_does_not_read_is_given_up;
        }
    };
}

mod tcp {
    tests_of_every_way!(Tcp);
    tests_of_networks!(Tcp);
    // Tests that transfer much data and don't depend on the transport.
    tests_over! {
        Tcp;
        endless_answers:
            a_server_whose_answer_does_not_end_is_left,
            an_answer_above_the_limit_is_refused_by_the_server;
    }
}

mod tls {
    tests_of_every_way!(Tls);
    tests_of_networks!(Tls);
    // Tests that need certificates.
    tests_over! {
        Tls;
        others_numbers:
            nobody_ends_the_connections_of_others;
        room:
            what_nodes_ask_does_not_wait_for_the_data_of_clients;
    }
}

mod on_host {
    tests_of_every_way!(OnHost);
}
