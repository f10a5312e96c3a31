//! Pages that the `parquet` crate wrote, decoded on the host target, with a thread a block and
//! with warps, and by that crate. Where
//! there is a GPU it decodes them too; without one those tests say that they could not run,
//! or fail if `WARPLINE_REQUIRE_GPU` is set.

mod files;
mod malformed;
mod parity;
mod physical;
mod unpack;

use files::Device;
use kernels::gpu::{HostOptions, devices, open_cuda, open_host};

macro_rules! on_both {
    ($($module:ident::$name:ident),* $(,)?) => {
        mod host {
            $(#[test]
            fn $name() {
                let gpu = super::open_host(super::HostOptions::default());
                super::$module::$name(&mut super::Device::new(gpu));
            })*
        }
        /// As a GPU runs it, with warps of 32 lanes; one launch at a time.
        mod warps {
            $(#[test]
            fn $name() {
                let options = super::HostOptions {
                    warps: true,
                    ..super::HostOptions::default()
                };
                let gpu = super::open_host(options);
                super::$module::$name(&mut super::Device::new(gpu));
            })*
        }
        mod cuda {
            $(#[test]
            fn $name() {
                let report = super::devices();
                if report.can_run() {
                    let gpu = super::open_cuda(0).expect("the report says that it can run");
                    return super::$module::$name(&mut super::Device::new(gpu));
                }
                let required = std::env::var_os("WARPLINE_REQUIRE_GPU").is_some();
                assert!(!required, "a GPU is required:\n{report}");
                eprintln!("not run, no GPU here:\n{report}");
            })*
        }
    };
}

on_both![
    parity::columns_are_what_the_parquet_crate_reads,
    parity::a_dictionary_that_overflows_goes_on_without_one,
    parity::texts_of_all_lengths_are_found,
    physical::int96_is_read_in_the_unit_that_is_asked_for,
    physical::decimals_of_any_number_of_bytes,
    physical::codes_stand_for_the_same_texts_in_every_row_group,
    physical::known_intervals_make_the_same_shape_of_every_chunk,
    malformed::each_fault_is_named,
    malformed::whatever_the_bytes_are_the_decoder_ends_and_stays_inside,
    unpack::bodies_are_what_was_compressed,
    unpack::changed_bodies_are_errors_or_what_the_reference_makes_of_them,
    unpack::the_first_page_at_fault_is_named,
];
