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
            use crate::rpc::{$module as cases, way::ConnectionMode};

            $(
                #[test]
                fn $test() {
                    cases::$test(ConnectionMode::$way);
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
                the_next_address_is_used_when_the_first_is_unreachable,
                new_addresses_are_used_by_calls_that_already_wait,
                addresses_are_looked_up_before_each_attempt,
                a_lookup_that_hangs_does_not_delay_calls,
                connections_to_former_addresses_are_ended,
                an_address_can_be_probed,
                a_call_that_times_out_reports_why,
                a_client_of_another_cluster_is_refused_at_once,
                each_core_has_a_connection_of_its_own,
                only_addresses_in_the_networks_are_used,
                cores_spread_over_addresses_that_are_equally_good;
            calls:
                an_answer_comes_back,
                errors_keep_their_message_and_hint,
                payloads_of_all_sizes_arrive_whole_among_many_calls,
                bodies_may_be_longer_than_what_is_staged,
                an_oversized_request_is_refused_by_the_client,
                an_abandoned_write_does_not_affect_other_calls,
                an_abandoned_call_does_not_touch_its_buffer,
                frames_may_arrive_in_pieces_of_any_size;
            cancel:
                a_dropped_wait_is_cancelled_at_the_server_and_frees_its_slot,
                requests_that_do_not_wait_are_not_cancelled;
            long_answers:
                an_answer_may_be_longer_than_a_frame;
            restarts:
                calls_survive_a_server_that_dies_and_comes_back;
            stop:
                a_stop_lets_running_requests_be_answered,
                a_stop_cancels_waiting_requests_and_refuses_new_ones,
                an_address_in_use_is_named_in_the_error;
            time_outs:
                a_call_that_is_never_answered_times_out_and_the_connection_stays,
                calls_that_timed_out_release_their_bytes,
                requests_beyond_the_credits_wait_and_time_out,
                waiting_calls_do_not_use_the_credits_of_others,
                an_unreachable_peer_is_named_with_the_reason,
                a_wait_outlasts_the_time_out;
            unchecked:
                a_checksum_mismatch_makes_the_client_ask_again,
                a_partial_block_is_verified_by_the_server;
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
                a_connection_that_breaks_within_a_frame_is_removed,
                a_request_that_cannot_be_understood_is_refused_and_the_connection_stays,
                more_requests_than_allowed_end_the_connection,
                two_waiting_requests_with_one_id_end_the_connection,
                a_client_that_pings_and_reads_no_pongs_is_not_read_from,
                a_flipped_bit_in_a_request_is_detected,
                a_flipped_bit_in_an_answer_is_detected_and_the_call_retransmitted,
                an_unverified_payload_is_never_accepted,
                an_answer_to_an_unknown_request_ends_the_connection;
            lost_connections:
                a_retransmission_never_runs_beside_the_original_when_both_ends_notice,
                a_retransmission_never_runs_beside_the_original_when_only_the_client_notices,
                a_request_that_hangs_blocks_reconnection_only_until_its_time_out,
                bulk_transfers_survive_cuts,
                an_older_connection_is_refused;
            silence:
                a_silent_connection_is_replaced,
                an_address_that_drops_large_frames_is_replaced_by_another,
                a_slow_request_does_not_make_a_server_look_dead,
                a_vanished_client_is_disconnected_and_an_idle_one_is_not,
                a_client_above_the_connection_limit_is_told_and_gets_in_later,
                a_server_with_little_memory_serializes_requests,
                a_client_that_waits_for_a_permit_keeps_its_connection,
                small_requests_are_admitted_while_large_ones_wait,
                a_client_that_waits_for_a_permit_can_reconnect,
                a_client_that_sends_requests_and_reads_no_answers_is_disconnected;
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
            an_endless_answer_ends_the_connection,
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
            a_client_cannot_end_the_connections_of_another;
        room:
            requests_of_nodes_do_not_wait_for_data_of_clients;
    }
}

mod on_host {
    tests_of_every_way!(OnHost);
}
