//! Notifications about objects, decoded by their shape.
//!
//! | Shape | Told by | Key |
//! |---|---|---|
//! | S3, also MinIO's webhook | `Records[].s3` | form-encoded: `+` is a space |
//! | S3 behind SNS | `Type: Notification`, the S3 shape as text in `Message` | form-encoded |
//! | EventBridge | `detail-type` and `detail.object` | as it is |
//! | Google Cloud Storage through Pub/Sub push | `message.attributes.bucketId` | as it is |
//!
//! A key is decoded for the shapes that encode it and no other, and never twice: a key may
//! really hold `%3A`. One bad record does not spoil its siblings.

use percent_encoding::percent_decode;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// It is there, whole.
    Created,
    /// It is gone.
    Removed,
    /// Something else, such as a change of its metadata.
    Other,
}

/// One object and what happened to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectEvent {
    /// What happened.
    pub kind: EventKind,
    /// `s3`, `gs`, or `file` for a path on this machine, which has no bucket.
    pub scheme: String,
    /// The bucket.
    pub bucket: String,
    /// The key, decoded.
    pub key: String,
    /// Its size, where it is told.
    pub size: Option<u64>,
    /// Its entity tag, without quotes.
    pub etag: Option<String>,
    /// Its version or generation.
    pub version: Option<String>,
    /// Orders the changes of one key.
    pub sequencer: Option<String>,
}

/// How keys are encoded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyEncoding {
    /// As the shape says.
    #[default]
    Auto,
    /// Form-encoded.
    Url,
    /// As they are.
    Raw,
}

/// What a message holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decoded {
    /// The events that can be read.
    pub events: Vec<ObjectEvent>,
    /// The records that cannot: what is wrong, and the record.
    pub poison: Vec<(String, Value)>,
}

/// Messages within messages: SNS within SQS is one.
const WRAPS_MAX: usize = 3;
/// The longest key of any store.
const KEY_BYTES_MAX: usize = 1024;

/// Reads a message. Test messages and empty ones hold nothing.
pub fn decode(message: &Value, encoding: KeyEncoding) -> Decoded {
    let mut decoded = Decoded::default();
    shape(message, encoding, 0, &mut decoded);
    decoded
}

/// Reads a message that is text.
pub fn decode_text(text: &str, encoding: KeyEncoding) -> Decoded {
    match serde_json::from_str(text) {
        Ok(message) => decode(&message, encoding),
        Err(error) => Decoded {
            events: Vec::new(),
            poison: vec![(
                format!("it is not JSON: {error}"),
                Value::String(text.chars().take(2_000).collect()),
            )],
        },
    }
}

fn shape(message: &Value, encoding: KeyEncoding, depth: usize, out: &mut Decoded) {
    let poison = |out: &mut Decoded, why: &str| out.poison.push((why.to_owned(), message.clone()));
    if let Some(records) = message["Records"].as_array() {
        for record in records {
            match s3_record(record, encoding) {
                Ok(event) => out.events.push(event),
                Err(why) => out.poison.push((why, record.clone())),
            }
        }
    } else if message["Event"] == "s3:TestEvent" {
        // Sent once when notifications are set up.
    } else if let (Some("Notification"), Some(inner)) =
        (message["Type"].as_str(), message["Message"].as_str())
    {
        match serde_json::from_str(inner) {
            Ok(inner) if depth < WRAPS_MAX => shape(&inner, encoding, depth + 1, out),
            _ => poison(out, "the notification's message is not one about an object"),
        }
    } else if message["detail-type"].is_string() && message["detail"]["object"].is_object() {
        match event_bridge(message, encoding) {
            Ok(event) => out.events.push(event),
            Err(why) => poison(out, &why),
        }
    } else if message["message"]["attributes"]["bucketId"].is_string() {
        match gcs(&message["message"]["attributes"], encoding) {
            Ok(event) => out.events.push(event),
            Err(why) => poison(out, &why),
        }
    } else {
        poison(out, "its shape is none that is known");
    }
}

fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str, String> {
    value
        .as_str()
        .filter(|text| !text.is_empty())
        .ok_or_else(|| format!("it has no {name}"))
}

fn optional(value: &Value) -> Option<String> {
    let text = value.as_str()?.trim_matches('"');
    (!text.is_empty()).then(|| text.to_owned())
}

/// A whole number, also one that is written as text.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn s3_record(record: &Value, encoding: KeyEncoding) -> Result<ObjectEvent, String> {
    let version = text(&record["eventVersion"], "eventVersion")?;
    if version.split('.').next() != Some("2") {
        return Err(format!(
            "its version is {version}, and 2 is what is understood"
        ));
    }
    let name = text(&record["eventName"], "eventName")?;
    let name = name.strip_prefix("s3:").unwrap_or(name);
    let kind = match name.split(':').next() {
        Some("ObjectCreated") => EventKind::Created,
        Some("ObjectRemoved") => EventKind::Removed,
        _ => EventKind::Other,
    };
    let object = &record["s3"]["object"];
    Ok(ObjectEvent {
        kind,
        scheme: "s3".into(),
        bucket: text(&record["s3"]["bucket"]["name"], "bucket")?.to_owned(),
        key: key(text(&object["key"], "key")?, encoding, true)?,
        size: number(&object["size"]),
        etag: optional(&object["eTag"]),
        version: optional(&object["versionId"]),
        sequencer: optional(&object["sequencer"]),
    })
}

fn event_bridge(message: &Value, encoding: KeyEncoding) -> Result<ObjectEvent, String> {
    let detail = &message["detail"];
    let object = &detail["object"];
    let kind = match message["detail-type"].as_str() {
        Some("Object Created") => EventKind::Created,
        Some("Object Deleted") => EventKind::Removed,
        _ => EventKind::Other,
    };
    Ok(ObjectEvent {
        kind,
        scheme: "s3".into(),
        bucket: text(&detail["bucket"]["name"], "bucket")?.to_owned(),
        key: key(text(&object["key"], "key")?, encoding, false)?,
        size: number(&object["size"]),
        etag: optional(&object["etag"]),
        version: optional(&object["version-id"]),
        sequencer: optional(&object["sequencer"]),
    })
}

fn gcs(attributes: &Value, encoding: KeyEncoding) -> Result<ObjectEvent, String> {
    let kind = match attributes["eventType"].as_str() {
        Some("OBJECT_FINALIZE") => EventKind::Created,
        Some("OBJECT_DELETE" | "OBJECT_ARCHIVE") => EventKind::Removed,
        _ => EventKind::Other,
    };
    Ok(ObjectEvent {
        kind,
        scheme: "gs".into(),
        bucket: text(&attributes["bucketId"], "bucketId")?.to_owned(),
        key: key(text(&attributes["objectId"], "objectId")?, encoding, false)?,
        size: None,
        etag: None,
        version: optional(&attributes["objectGeneration"]),
        sequencer: None,
    })
}

fn key(written: &str, encoding: KeyEncoding, shape_encodes: bool) -> Result<String, String> {
    let is_encoded = match encoding {
        KeyEncoding::Auto => shape_encodes,
        KeyEncoding::Url => true,
        KeyEncoding::Raw => false,
    };
    let key = if is_encoded {
        let spaced = written.replace('+', " ");
        let decoded = percent_decode(spaced.as_bytes()).decode_utf8();
        decoded
            .map_err(|_| "its key is not UTF-8 once decoded".to_owned())?
            .into_owned()
    } else {
        written.to_owned()
    };
    if key.len() > KEY_BYTES_MAX {
        return Err(format!("its key has more than {KEY_BYTES_MAX} bytes"));
    }
    Ok(key)
}

impl ObjectEvent {
    /// What tells this content of the object from any other. A later content of the same key
    /// has another identity, a repeated notification the same.
    pub fn identity(&self) -> String {
        // A listing tells no version, so the entity tag comes first where there is one.
        let content = match (&self.etag, &self.version) {
            (Some(etag), _) => format!("e:{etag}:{}", self.size.unwrap_or(0)),
            (None, Some(version)) => format!("v:{version}"),
            // Without any of them the order of changes is the best there is.
            _ => format!("s:{}", self.sequencer.as_deref().unwrap_or("")),
        };
        // A list in JSON keeps its parts apart whatever is in them.
        serde_json::json!([self.scheme, self.bucket, self.key, content]).to_string()
    }

    /// Its name without folders and without its last ending.
    pub fn stem(&self) -> &str {
        let name = self.key.rsplit('/').next().unwrap_or(&self.key);
        match name.rsplit_once('.') {
            Some((stem, _)) if !stem.is_empty() => stem,
            _ => name,
        }
    }

    /// Its location.
    pub fn location(&self) -> String {
        if self.scheme == "file" {
            return format!("/{}", self.key);
        }
        format!("{}://{}/{}", self.scheme, self.bucket, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn s3(key: &str) -> Value {
        json!({"eventVersion": "2.1", "eventName": "ObjectCreated:Put", "s3": {
            "bucket": {"name": "lake"}, "object": {"key": key, "size": 5, "eTag": "\"abc\"", "sequencer": "0A"}}})
    }

    #[track_caller]
    fn check(message: Value, expected: &[&str]) {
        let decoded = decode(&message, KeyEncoding::Auto);
        let locations: Vec<String> = decoded.events.iter().map(ObjectEvent::location).collect();
        assert_eq!(locations, expected, "{:?}", decoded.poison);
    }

    #[test]
    fn every_shape_is_told_and_its_key_is_decoded_once() {
        let hard = "a b+c%3A&=';\"ü/d";
        let encoded = "a+b%2Bc%253A%26%3D%27%3B%22%C3%BC/d";
        let whole = format!("s3://lake/{hard}");
        check(json!({"Records": [s3(encoded)]}), &[&whole]);
        // MinIO encodes the slash too, and names itself in front.
        let mut minio = s3(&encoded.replace('/', "%2F"));
        minio["eventName"] = json!("s3:ObjectCreated:Put");
        check(
            json!({"EventName": "s3:ObjectCreated:Put", "Key": "x", "Records": [minio]}),
            &[&whole],
        );
        let inner = json!({"Records": [s3(encoded)]}).to_string();
        check(json!({"Type": "Notification", "Message": inner}), &[&whole]);
        check(
            json!({"detail-type": "Object Created", "source": "aws.s3", "detail": {
                "bucket": {"name": "lake"}, "object": {"key": hard, "size": 5, "etag": "abc"}}}),
            &[&whole],
        );
        check(
            json!({"message": {"data": "e30=", "attributes": {
                "eventType": "OBJECT_FINALIZE", "bucketId": "lake", "objectId": hard, "objectGeneration": "7"}}}),
            &[&format!("gs://lake/{hard}")],
        );
        check(
            json!({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "lake"}),
            &[],
        );
        check(json!({"Records": []}), &[]);
    }

    #[test]
    fn what_cannot_be_read_does_not_spoil_its_siblings() {
        let mut old = s3("old");
        old["eventVersion"] = json!("1.0");
        let mut nameless = s3("nameless");
        nameless["s3"]["bucket"] = json!({});
        let decoded = decode(
            &json!({"Records": [s3("good"), old, 7, nameless, s3("%ff"), s3(&"k".repeat(1025)), s3("too")]}),
            KeyEncoding::Auto,
        );
        let keys: Vec<_> = decoded
            .events
            .iter()
            .map(|event| event.key.as_str())
            .collect();
        assert_eq!(keys, ["good", "too"]);
        assert_eq!(decoded.poison.len(), 5);
        for message in [
            json!({}),
            json!(null),
            json!({"Type": "Notification", "Message": "{"}),
        ] {
            assert_eq!(
                decode(&message, KeyEncoding::Auto).poison.len(),
                1,
                "{message}"
            );
        }
        assert_eq!(decode_text("{", KeyEncoding::Auto).poison.len(), 1);
        // A message that wraps itself ends.
        let mut wrapped = json!({"Records": [s3("deep")]});
        for _ in 0..10 {
            wrapped = json!({"Type": "Notification", "Message": wrapped.to_string()});
        }
        assert_eq!(decode(&wrapped, KeyEncoding::Auto).poison.len(), 1);
    }

    #[test]
    fn the_operator_can_say_how_keys_are_written() {
        let message = json!({"Records": [s3("a+b%3A")]});
        for (encoding, key) in [
            (KeyEncoding::Auto, "a b:"),
            (KeyEncoding::Url, "a b:"),
            (KeyEncoding::Raw, "a+b%3A"),
        ] {
            assert_eq!(decode(&message, encoding).events[0].key, key);
        }
    }

    #[test]
    fn the_same_content_has_one_identity() {
        let event = |change: &dyn Fn(&mut ObjectEvent)| {
            let mut event = decode(&json!({"Records": [s3("k")]}), KeyEncoding::Auto)
                .events
                .remove(0);
            change(&mut event);
            event.identity()
        };
        let same = event(&|_| {});
        assert_eq!(event(&|e| e.sequencer = Some("0B".into())), same);
        assert_eq!(event(&|e| e.version = Some("null".into())), same);
        assert_ne!(event(&|e| e.etag = Some("def".into())), same);
        assert_eq!(event(&|e| e.version = Some("1".into())), same);
        let versioned = event(&|e| (e.etag, e.version) = (None, Some("1".into())));
        assert_ne!(
            versioned,
            event(&|e| (e.etag, e.version) = (None, Some("2".into())))
        );
        assert_ne!(event(&|e| e.key = "l".into()), same);
        assert_ne!(event(&|e| e.bucket = "sea".into()), same);
    }
}
