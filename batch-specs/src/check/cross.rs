//! Settings and properties that only make sense together.

use crate::MemorySize;
use crate::derive::{Derivation, pools_mib_per_core};
use crate::problem::Severity::{self, Error, Notice, Warning};
use crate::settings::Said;

const SHUFFLE_MANAGER: &str = "RapidsShuffleManager";
const PLUGIN: &str = "SQLPlugin";

pub(super) fn check(d: &mut Derivation<'_>) {
    pinned_and_off_heap(d);
    container(d);
    shuffle(d);
    serializer(d);
    plugin(d);
    device_fractions(d);
    remarks(d);
    runtime(d);
}

fn text(said: &Said) -> &str {
    said.value.as_str().unwrap_or_default()
}

fn at(
    d: &mut Derivation<'_>,
    key: &str,
    severity: Severity,
    code: &str,
    message: String,
    hint: &str,
) {
    let Some(said) = d.property(key) else { return };
    d.problems
        .push(severity, code, &said.at, said.place, message, hint);
}

fn pinned_and_off_heap(d: &mut Derivation<'_>) {
    let pinned = d.said_count("memory.pinned_mib");
    let limit = d.said_count("memory.off_heap_limit_mib");
    let said_overhead = d.said_count("executors.memory_overhead_mib");
    let limit_off = d.switch("spark.rapids.memory.host.offHeapLimit.enabled") == Some(false);
    let cores = d.out.count("executors.cores").unwrap_or(1);
    if let (Some(limit), Some(overhead)) = (limit, said_overhead)
        && limit > overhead
    {
        let shown = (
            d.shown("memory.off_heap_limit_mib"),
            d.shown("executors.memory_overhead_mib"),
        );
        let message = format!(
            "{} is {limit} MiB, more than {} of {overhead} MiB",
            shown.0, shown.1
        );
        d.refuse(
            "off-heap-over-overhead",
            "memory.off_heap_limit_mib",
            message,
            "the limit lies inside the overhead, pinned memory included",
        );
    }
    let Some(pinned) = pinned else { return };
    let per_cores = pools_mib_per_core() * cores;
    let shown = d.shown("memory.pinned_mib");
    match limit.filter(|_| !limit_off) {
        Some(limit) if pinned + per_cores > limit => {
            let message = format!(
                "{shown} of {pinned} MiB and {per_cores} MiB for {cores} cores exceed the off-heap limit of {limit} MiB"
            );
            d.report(
                Warning,
                "pinned-over-limit",
                "memory.pinned_mib",
                message,
                "less would be pinned than is asked for",
            );
        }
        Some(_) => {}
        None => {
            let overhead = d.out.count("executors.memory_overhead_mib").unwrap_or(0);
            if overhead > 0 && pinned > overhead {
                let message = format!(
                    "{shown} is {pinned} MiB, more than the overhead of {overhead} MiB that it lies in"
                );
                d.refuse(
                    "pinned-over-overhead",
                    "memory.pinned_mib",
                    message,
                    "pin less, or leave more overhead",
                );
            }
        }
    }
}

fn container(d: &mut Derivation<'_>) {
    let size = |d: &Derivation<'_>, key: &str| {
        let size = d
            .property(key)
            .and_then(|s| text(s).parse::<MemorySize>().ok());
        size.map_or(0, MemorySize::mib)
    };
    let spark_key = "spark.memory.offHeap.size";
    let python_key = "spark.executor.pyspark.memory";
    let extra = size(d, spark_key) + size(d, python_key);
    let memory = d.out.count("executors.memory_mib").unwrap_or(0);
    let overhead = d.said_count("executors.memory_overhead_mib").unwrap_or(0);
    let sum = memory + overhead + extra;
    if extra > 0 && d.total_mib > 0 && sum > d.total_mib {
        let key = if d.property(spark_key).is_some() {
            spark_key
        } else {
            python_key
        };
        let message = format!(
            "memory, overhead, off-heap and Python memory are {sum} MiB, and the executor has {} MiB",
            d.total_mib
        );
        at(
            d,
            key,
            Error,
            "over-container",
            message,
            "lower one of them",
        );
    }
    let spill = "spark.rapids.memory.host.spillStorageSize";
    let has_limit = d.switch("spark.rapids.memory.host.offHeapLimit.enabled") == Some(true)
        || d.said_count("memory.off_heap_limit_mib").is_some();
    if has_limit {
        at(
            d,
            spill,
            Notice,
            "spill-size-ignored",
            format!("`{spill}` is ignored where an off-heap limit is set"),
            "remove it",
        );
    }
}

fn shuffle(d: &mut Derivation<'_>) {
    let merge = "spark.rapids.shuffle.multithreaded.skipMerge";
    if d.switch(merge) == Some(true) {
        let service_on = d.switch("spark.shuffle.service.enabled") == Some(true);
        let limit_on = d.switch("spark.rapids.memory.host.offHeapLimit.enabled") == Some(true);
        if service_on || !limit_on {
            let why = if service_on {
                "the shuffle service off"
            } else {
                "the off-heap limit on"
            };
            let message = format!("`{merge}` needs {why}");
            at(
                d,
                merge,
                Error,
                "skip-merge",
                message,
                "serving unmerged files from memory needs a bound on that memory, and no other server",
            );
        }
    }
    let manager = d.property("spark.shuffle.manager");
    if manager.is_some_and(|m| text(m).contains(SHUFFLE_MANAGER)) {
        return;
    }
    let mode = d.properties_with("spark.rapids.shuffle.");
    let threads = ["shuffle.reader_threads", "shuffle.writer_threads"]
        .into_iter()
        .filter_map(|n| {
            d.settings
                .winner(n)
                .filter(|s| s.at.contains("spark.rapids.shuffle."))
        })
        .map(|s| (s.at.clone(), s.place));
    if let Some((path, place)) = mode
        .into_iter()
        .chain(threads)
        .min_by_key(|(_, p)| (p.line, p.column))
    {
        let message = format!(
            "`spark.rapids.shuffle.*` is set, and `spark.shuffle.manager` is not a {SHUFFLE_MANAGER}"
        );
        d.problems.push(
            Warning,
            "shuffle-manager",
            &path,
            place,
            message,
            "with Spark the keys have no effect then; here they count",
        );
    }
}

fn serializer(d: &mut Derivation<'_>) {
    let key = "spark.serializer";
    let Some(name) = d.property(key).map(|s| text(s).to_owned()) else {
        return;
    };
    if name.ends_with("KryoSerializer") {
        let registrator = d
            .property("spark.kryo.registrator")
            .is_some_and(|s| text(s).contains("GpuKryoRegistrator"));
        if !registrator {
            at(
                d,
                key,
                Error,
                "kryo-registrator",
                "Kryo is set without the GPU registrator".to_owned(),
                "set `spark.kryo.registrator` to `com.nvidia.spark.rapids.GpuKryoRegistrator`, or remove the serializer",
            );
        }
    } else if !name.ends_with("JavaSerializer") {
        let message = format!(
            "`{}` is a serializer that GPU plans cannot use",
            crate::read::cut(&name)
        );
        at(
            d,
            key,
            Error,
            "serializer",
            message,
            "use Java's or Kryo's, or remove the key",
        );
    }
}

fn plugin(d: &mut Derivation<'_>) {
    let has_gpu = d.chosen.is_some() || d.out.text("gpu.type").is_some_and(|t| t != "none");
    let key = "spark.plugins";
    let listed = d.property(key).map(|s| text(s).contains(PLUGIN));
    let enabled = d.switch("spark.rapids.sql.enabled");
    if has_gpu && listed == Some(false) {
        at(
            d,
            key,
            Warning,
            "gpu-without-plugin",
            format!("an accelerator is named, and `{key}` lacks the {PLUGIN}"),
            "with Spark the GPU would idle and be paid for; here it is used",
        );
    }
    if has_gpu && enabled == Some(false) {
        at(
            d,
            "spark.rapids.sql.enabled",
            Warning,
            "gpu-switched-off",
            "an accelerator is named, and its use is switched off".to_owned(),
            "remove the key, or write `accelerator: {type: none}`",
        );
    }
    let none_is_said = d.out.text("gpu.type") == Some("none")
        && (d.is_dataproc() || d.settings.winner("gpu.type").is_some());
    if none_is_said && listed == Some(true) {
        at(
            d,
            key,
            Warning,
            "plugin-without-gpu",
            "the plugin is named, and no accelerator is".to_owned(),
            "the batch runs on the CPU; name an accelerator",
        );
    }
}

fn device_fractions(d: &mut Derivation<'_>) {
    let key = |part: &str| format!("spark.rapids.memory.gpu.{part}");
    let number = |d: &Derivation<'_>, key: &str, otherwise: f64| {
        d.property(key)
            .and_then(|s| text(s).parse::<f64>().ok())
            .unwrap_or(otherwise)
    };
    let (min_key, alloc_key, max_key) = (
        key("minAllocFraction"),
        key("allocFraction"),
        key("maxAllocFraction"),
    );
    let (max, alloc) = (number(d, &max_key, 1.0), number(d, &alloc_key, 1.0));
    let min = number(d, &min_key, 0.25);
    let wrong = [
        (&alloc_key, alloc > max),
        (&min_key, min > alloc),
        (&max_key, alloc > max),
    ];
    if let Some((key, _)) = wrong
        .into_iter()
        .find(|(k, is_wrong)| *is_wrong && d.property(k).is_some())
    {
        let message = format!(
            "the device fractions are min {min}, alloc {alloc}, max {max}; they must not decrease in this order"
        );
        at(
            d,
            key,
            Error,
            "device-fractions",
            message,
            "keep 0 <= min <= alloc <= max <= 1",
        );
    }
    let reserve = key("reserve");
    let bytes = d.property(&reserve).and_then(|s| {
        text(s)
            .parse::<MemorySize>()
            .map(MemorySize::bytes)
            .or_else(|_| text(s).parse::<u64>())
            .ok()
    });
    let device = d.out.count("gpu.memory_mib").unwrap_or(0);
    if bytes.is_some_and(|b| device > 0 && (b >> 20) as f64 >= device as f64 * max) {
        at(
            d,
            &reserve,
            Error,
            "device-reserve",
            "the reserve takes the whole device".to_owned(),
            "640 MiB is usual",
        );
    }
}

fn remarks(d: &mut Derivation<'_>) {
    if d.switch("spark.rapids.sql.stableSort.enabled") == Some(true) {
        at(
            d,
            "spark.rapids.sql.stableSort.enabled",
            Warning,
            "stable-sort",
            "a stable sort keeps a whole partition in memory and cannot spill".to_owned(),
            "",
        );
    }
    let metrics = "spark.rapids.sql.metrics.level";
    if d.property(metrics)
        .is_some_and(|s| text(s).eq_ignore_ascii_case("debug"))
    {
        at(
            d,
            metrics,
            Notice,
            "debug-metrics",
            "DEBUG metrics are large".to_owned(),
            "raise `spark.driver.maxResultSize`, or use MODERATE",
        );
    }
    if d.out.text("explain.mode") == Some("ALL") {
        d.report(
            Notice,
            "explain-all",
            "explain.mode",
            "every operator of every plan is explained",
            "use NOT_ON_GPU in production",
        );
    }
    for key in [
        "spark.dataproc.enhanced.execution.enabled",
        "spark.dataproc.enhanced.optimizer.enabled",
    ] {
        if d.chosen.is_some() && d.switch(key) == Some(true) {
            at(
                d,
                key,
                Warning,
                "enhanced-with-gpu",
                format!("`{key}` does not go together with a GPU"),
                "remove it",
            );
        }
    }
}

fn runtime(d: &mut Derivation<'_>) {
    let key = "spark.dataproc.scaling.version";
    if !d.is_dataproc() {
        return;
    }
    if d.spec.runtime_version.is_some() && d.runtime().is_none() {
        let path = "runtime_version";
        let message = "`runtime_version` is not a version such as `2.2`";
        d.problems
            .error("runtime-version", path, d.accelerator_place, message, "");
    }
    if d.runtime().is_some_and(|v| v >= (3, 0)) {
        at(
            d,
            key,
            Error,
            "scaling-version",
            format!("`{key}` is refused by runtime 3.0 and later"),
            "remove it",
        );
    } else if d
        .property(key)
        .is_some_and(|s| !matches!(text(s), "1" | "2"))
    {
        at(
            d,
            key,
            Error,
            "scaling-version",
            format!("`{key}` is 1 or 2"),
            "",
        );
    }
}
