//! Objects of a store, as triggers look at them and as SQL sees those that started a batch.

use std::io::{self, Write};
use std::path::Path;

use batch_specs::Spec;
use batch_specs::spec::{Column, Format, Table};
use datafusion::object_store::ObjectStore;
use engine::sources::Location;
use futures::TryStreamExt;
use serde_json::json;

use crate::trigger::event::{EventKind, ObjectEvent};
use crate::wiring::{storage, storage_name};
use crate::{Failure, Kind};

/// The table of the objects that started a batch.
const OBJECT_TABLE: &str = "event_objects";
/// Requests at a time while listing.
const LIST_REQUESTS: usize = 4;

/// Every object below a location, reached as `spec` says.
pub async fn list_objects(location: &str, spec: &Spec) -> Result<Vec<ObjectEvent>, Failure> {
    let parsed = Location::parse(location).map_err(|error| Failure::from(&error))?;
    let scheme = match parsed.root.scheme() {
        scheme @ ("s3" | "gs" | "file") => scheme.to_owned(),
        other => {
            let message =
                format!("`{location}`: what is at `{other}://` cannot be listed for a trigger");
            return Err(Failure::new(Kind::InvalidSpec, message));
        }
    };
    let name = storage_name(location, spec);
    let all = storage(spec)?;
    let options = all
        .iter()
        .find(|options| Some(&options.name) == name.as_ref());
    let store = engine::sources::store::open(&parsed, options, LIST_REQUESTS)
        .map_err(|error| Failure::from(&error))?;
    let failed = |error| Failure::from(&engine::Error::from_store(location, &error));
    let listed: Vec<_> = store
        .list(Some(&parsed.prefix))
        .try_collect()
        .await
        .map_err(failed)?;
    let bucket = parsed.root.host_str().unwrap_or_default().to_owned();
    Ok(listed
        .into_iter()
        .map(|object| ObjectEvent {
            kind: EventKind::Created,
            scheme: scheme.clone(),
            bucket: bucket.clone(),
            key: object.location.to_string(),
            size: Some(object.size),
            etag: object.e_tag.map(|etag| etag.trim_matches('"').to_owned()),
            version: object.version,
            sequencer: None,
        })
        .collect())
}

/// Writes the objects that started a batch to a file in `folder`, and gives the spec a table
/// of them.
pub fn write_object_table(
    spec: &mut Spec,
    objects: &[ObjectEvent],
    folder: &Path,
) -> io::Result<()> {
    if spec.tables.iter().any(|table| table.name == OBJECT_TABLE) {
        let message =
            format!("the table `{OBJECT_TABLE}` is that of the trigger; rename the spec's");
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    let path = folder.join("event_objects.jsonl");
    let mut file = io::BufWriter::new(std::fs::File::create(&path)?);
    for object in objects {
        let row = json!({
            "location": object.location(),
            "bucket": object.bucket,
            "key": object.key,
            "size": object.size,
            "etag": object.etag,
            "version": object.version,
        });
        writeln!(file, "{row}")?;
    }
    file.flush()?;
    let column = |name: &str, kind: &str| Column {
        name: name.into(),
        kind: kind.into(),
        nullable: None,
    };
    spec.tables.push(Table {
        name: OBJECT_TABLE.into(),
        location: path.display().to_string(),
        format: Some(Format::Json),
        options: Default::default(),
        schema: Some(vec![
            column("location", "varchar"),
            column("bucket", "varchar"),
            column("key", "varchar"),
            column("size", "bigint"),
            column("etag", "varchar"),
            column("version", "varchar"),
        ]),
        partition_columns: Vec::new(),
    });
    Ok(())
}
