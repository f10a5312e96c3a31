//! Which GPU.

use super::{Chosen, Derivation};
use crate::catalogue::Catalogue;
use crate::problem::{Severity, nearest};
use crate::provenance::Origin;
use crate::read::{cut, list};

/// Settles the accelerator. False when its name cannot be understood.
pub(super) fn derive(d: &mut Derivation<'_>) -> bool {
    d.settle(
        "accelerator.fallback",
        "cpu",
        Origin::Default,
        "a part that the GPU cannot do runs on the CPU",
    );
    d.settle(
        "accelerator.deterministic",
        false,
        Origin::Default,
        "float sums may differ in their last digits",
    );
    d.settle(
        "accelerator.column_cache",
        true,
        Origin::Default,
        "a later stage may read the same columns",
    );
    let (otherwise, from, why) = if d.is_dataproc() {
        (
            "none",
            Origin::Profile,
            "a batch has a GPU only when it names one",
        )
    } else {
        ("auto", Origin::Default, "what the machine has")
    };
    let written = d.settle("gpu.type", otherwise, from, why);
    if let Some(said) = d.settings.winner("gpu.type") {
        d.accelerator_place = said.place;
    }
    let written = written.as_str().unwrap_or(otherwise).to_owned();
    let name = written.trim().to_ascii_lowercase();
    if name.contains(',') {
        let message = format!(
            "`{}` names several accelerators; a batch has one type",
            cut(&written)
        );
        d.refuse(
            "several-accelerators",
            "gpu.type",
            message,
            "keep one of them",
        );
        return false;
    }
    match name.as_str() {
        "none" => return true,
        "auto" => return auto(d),
        _ => {}
    }
    let Some(gpu) = d.catalogue.gpu(&name) else {
        let hint = suggest(d, &name);
        let message = format!("`{}` is not an accelerator of the catalogue", cut(&written));
        d.refuse("unknown-accelerator", "gpu.type", message, hint);
        return false;
    };
    if written != name {
        let message = format!("`{}` was read as `{name}`", cut(&written));
        d.report(
            Severity::Notice,
            "accelerator-spelling",
            "gpu.type",
            message,
            "",
        );
        d.overrule(
            "gpu.type",
            name.clone(),
            Origin::Rule,
            "blanks and capitals do not matter",
        );
    }
    if d.is_dataproc() && !gpu.in_dataproc {
        let message = format!("`{name}` is not in the dataproc profile");
        let hint = format!(
            "that profile has {}; use `profile: native` for `{name}`",
            list(offered(d.catalogue))
        );
        d.refuse("accelerator-not-in-profile", "gpu.type", message, hint);
        return false;
    }
    if !d.is_dataproc() && d.machine.is_some_and(|m| m.gpus.is_empty()) {
        absent(d, &name);
        return true;
    }
    d.chosen = Some(Chosen {
        gpu: Some(gpu),
        memory_gib: gpu.memory_gib,
    });
    true
}

fn auto(d: &mut Derivation<'_>) -> bool {
    if d.is_dataproc() {
        let hint = format!("name one of {}, or `none`", list(offered(d.catalogue)));
        d.refuse(
            "accelerator-not-in-profile",
            "gpu.type",
            "`auto` is not in the dataproc profile",
            hint,
        );
        return false;
    }
    let Some(info) = d.machine.and_then(|m| m.gpus.first()) else {
        let why = if d.machine.is_some() {
            "auto: the machine has no GPU"
        } else {
            "auto: no machine is known yet"
        };
        if d.out.text("accelerator.fallback") == Some("fail") && d.machine.is_some() {
            d.refuse(
                "gpu-absent",
                "gpu.type",
                "the machine has no GPU, and `accelerator.fallback` is `fail`",
                "run elsewhere, or allow `fallback: cpu`",
            );
        }
        d.overrule("gpu.type", "none", Origin::Rule, why);
        return true;
    };
    if d.out.text("accelerator.fallback") != Some("fail") {
        let why = "auto: a batch that the CPU would answer sooner stays there";
        d.settle("gpu.by_cost", true, Origin::Rule, why);
    }
    match d.catalogue.recognise(&info.name, info.memory_mib) {
        Some(gpu) => {
            d.overrule(
                "gpu.type",
                gpu.name.clone(),
                Origin::Rule,
                format!("auto: the machine has {}", info.name),
            );
            d.chosen = Some(Chosen {
                gpu: Some(gpu),
                memory_gib: gpu.memory_gib,
            });
        }
        None => {
            let words: Vec<String> = info
                .name
                .split(|c: char| !c.is_ascii_alphanumeric())
                .filter(|w| !w.is_empty())
                .map(str::to_ascii_lowercase)
                .collect();
            let why = "auto: a card that the catalogue does not know; its driver says what it has";
            d.overrule("gpu.type", words.join("-"), Origin::Rule, why);
            d.chosen = Some(Chosen {
                gpu: None,
                memory_gib: info.memory_mib.div_ceil(1024).max(1),
            });
        }
    }
    true
}

/// A GPU was named and the machine has none.
fn absent(d: &mut Derivation<'_>, name: &str) {
    let message = format!("the machine has no GPU, so nothing runs on `{name}`");
    if d.out.text("accelerator.fallback") == Some("fail") {
        d.refuse(
            "gpu-absent",
            "gpu.type",
            message,
            "run elsewhere, or allow `fallback: cpu`",
        );
    } else {
        d.report(
            Severity::Warning,
            "gpu-absent",
            "gpu.type",
            message,
            "everything runs on the CPU here",
        );
    }
}

fn offered(catalogue: &Catalogue) -> Vec<&str> {
    catalogue
        .gpus
        .iter()
        .filter(|g| g.in_dataproc)
        .map(|g| g.name.as_str())
        .collect()
}

/// What the author may have meant: other systems write `nvidia-tesla-a100` or `a100-80gb`.
fn suggest(d: &Derivation<'_>, name: &str) -> String {
    let names: Vec<&str> = d
        .catalogue
        .gpus
        .iter()
        .filter(|g| !d.is_dataproc() || g.in_dataproc)
        .map(|g| g.name.as_str())
        .collect();
    let bare = name
        .replace("nvidia-", "")
        .replace("tesla-", "")
        .replace(['_', ' '], "-");
    let bare = bare.strip_suffix("gb").unwrap_or(&bare);
    if names.contains(&bare) {
        return format!("did you mean `{bare}`?");
    }
    let family: Vec<&&str> = names
        .iter()
        .filter(|n| n.starts_with(bare) && !bare.is_empty())
        .collect();
    if !family.is_empty() {
        return format!("did you mean {}?", list(family).replace(", ", " or "));
    }
    match nearest(bare, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the catalogue has {}", list(&names)),
    }
}
