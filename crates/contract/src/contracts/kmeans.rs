//! Food distribution by clustering: FlexChain's compute-intensive workload (paper, sections 2.1, 6.1 and 6.2).
//!
//! | function | reads | writes |
//! |---|---|---|
//! | `updateProfile(id, values…)` | | the profile |
//! | `getFood(id, k, epochs, dimensions, threshold, points, population, seed)` | `points` + 1 profiles | the result |
//! | `predict(k, values…)` | the profiles 0 to k - 1 | |
//! | `readProfile(id)` | the profile | |
//! | `readFood(id)` | the result | |
//! | `load(start, count, dimensions, seed)` | | `count` profiles, named by numbers from `start` on |
//!
//! `getFood` draws `points` distinct numbers below `population`, uniformly, from a generator with the given seed. It
//! reads the profiles that have these numbers as names and clusters them ([`clustering`]). Then it finds the cluster
//! nearest to the profile of `id`, and writes the result. Every endorser computes the same bytes. The paper's
//! parameters are k = 20, epochs = 2000, dimensions = 100 and threshold = 0.01.
//!
//! `predict` takes the first `k` profiles for centroids that were trained elsewhere, and answers which of them is nearest to a
//! vector ([`Prediction`]; paper, section 2.1).
//!
//! All parameters are bounded, and so is their product: a client can make a peer compute for seconds, not for hours.
//! The computation runs beside the peer's other tasks ([`rt::compute`]) and yields about every millisecond, so a time limit can
//! stop it.
//!
//! State: `profile_<id>` → the coordinates (f64, little-endian), `food_<id>` → the result as JSON ([`Food`]).

use std::collections::BTreeSet;

use base::{Bytes, rt};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::interface::{ContractFunction, ContractInterface, FunctionCall, FunctionParameter, ResolvedFunction, shown};
use super::sequence::RandomSequence;
use crate::{Contract, ContractError, ContractResponse, ContractStub, async_trait};

mod clustering;
use clustering::{Clustering, nearest};

/// The longest id of a profile.
pub const ID_BYTES_MAX: usize = 64;
/// The most coordinates of a profile.
pub const DIMENSIONS_MAX: u64 = 10_000;
/// The largest magnitude of a coordinate: sums of their squares stay far from infinity.
pub const COORDINATE_MAX: f64 = 1e12;
/// The most clusters.
pub const CLUSTERS_MAX: u64 = 256;
/// The most epochs.
pub const EPOCHS_MAX: u64 = 10_000;
/// The most profiles that one `getFood` clusters.
pub const POINTS_MAX: u64 = 10_000;
/// The most coordinates that one `getFood` clusters or one `load` writes, over all profiles: 64 MiB.
pub const COORDINATES_MAX: u64 = 8 << 20;
/// The most multiplications that one `getFood` may come to: points × dimensions × clusters × epochs.
pub const MULTIPLICATIONS_MAX: u64 = 1 << 35;
/// The most profiles that one `load` writes.
pub const LOAD_PROFILES_MAX: u64 = 100_000;

/// How many multiplications are done between two chances for other tasks: about a quarter of a millisecond of work.
const STEP_MULTIPLICATIONS: usize = 1 << 20;

const COORDINATE_BYTES: usize = 8;

const ID: FunctionParameter = FunctionParameter::text("id");
const DIMENSIONS: FunctionParameter = FunctionParameter::integer("dimensions");
const SEED: FunctionParameter = FunctionParameter::integer("seed");

const INTERFACE: ContractInterface = ContractInterface {
    name: "kmeans",
    aliases: &[],
    version: "1.0",
    functions: &[
        ContractFunction::submit("updateProfile", &[ID, FunctionParameter::text("values")]).repeating_last(),
        ContractFunction::submit(
            "getFood",
            &[
                ID,
                FunctionParameter::integer("k"),
                FunctionParameter::integer("epochs"),
                DIMENSIONS,
                FunctionParameter::number("threshold"),
                FunctionParameter::integer("points"),
                FunctionParameter::integer("population"),
                SEED,
            ],
        ),
        ContractFunction::evaluate("predict", &[FunctionParameter::integer("k"), FunctionParameter::text("values")])
            .repeating_last(),
        ContractFunction::evaluate("readProfile", &[ID]),
        ContractFunction::evaluate("readFood", &[ID]),
        ContractFunction::submit(
            "load",
            &[FunctionParameter::integer("start"), FunctionParameter::integer("count"), DIMENSIONS, SEED],
        ),
    ],
    schemas: || json!({}),
};

/// The workload's contract.
#[derive(Debug, Clone, Copy, Default)]
pub struct KMeans;

#[async_trait]
impl Contract for KMeans {
    fn name(&self) -> &str {
        "kmeans"
    }

    async fn invoke(
        &self,
        tx: &mut dyn ContractStub,
        function: &str,
        args: &[Bytes],
    ) -> Result<ContractResponse, ContractError> {
        let call = match INTERFACE.resolve(function, args)? {
            ResolvedFunction::Call(call) => call,
            ResolvedFunction::Answered(response) => return Ok(response),
        };
        match call.function() {
            "updateProfile" => update_profile(tx, &call),
            "getFood" => get_food(tx, &call).await,
            "predict" => predict(tx, &call).await,
            "readProfile" => {
                let profile = read_profile(tx, id_of(&call)?).await?;
                Ok(ContractResponse::success(serde_json::to_vec(&profile).expect("finite numbers are always JSON")))
            }
            "readFood" => {
                let id = id_of(&call)?;
                let food = tx.get_state(&food_key(id)).await?;
                let food = food.ok_or_else(|| ContractError::application(format!("{} got no food yet", shown(id))))?;
                Ok(ContractResponse::success(food))
            }
            "load" => load(tx, &call),
            function => unreachable!("{function} is declared and not handled"),
        }
    }
}

/// What `getFood` found, and writes down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Food {
    /// The cluster that the profile belongs to, from 0.
    pub cluster: usize,
    /// How many clusters there are: k, or fewer when fewer points differ.
    pub clusters: usize,
    /// How far the profile is from the cluster's centre.
    pub distance: f64,
    /// How many epochs it took.
    pub epochs: u64,
    /// The sum of the points' distances to their clusters' centres.
    pub error: f64,
}

/// What `predict` answers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The number of the nearest centroid.
    pub cluster: usize,
    /// How far the vector is from it.
    pub distance: f64,
}

/// The state key of a profile.
pub fn profile_key(id: &str) -> String {
    ["profile_", id].concat()
}

/// The state key of the result of `getFood`.
pub fn food_key(id: &str) -> String {
    ["food_", id].concat()
}

/// Profile `number` of a population loaded with `seed`: coordinates from 0 up to but without 1.
pub fn loaded_profile(seed: u64, number: u64, dimensions: usize) -> Vec<f64> {
    let mut sequence = RandomSequence::for_item(seed, number);
    (0..dimensions).map(|_| sequence.unit()).collect()
}

/// Parameters of `getFood`, within their bounds.
#[derive(Debug)]
struct TrainingRequest<'a> {
    id: &'a str,
    k: usize,
    epochs: u64,
    dimensions: usize,
    threshold: f64,
    points: usize,
    population: u64,
    seed: u64,
}

impl<'a> TrainingRequest<'a> {
    fn from(call: &FunctionCall<'a>) -> Result<Self, ContractError> {
        let k = call.count(1, 1, CLUSTERS_MAX)?;
        let epochs = call.count(2, 1, EPOCHS_MAX)?;
        let dimensions = call.count(3, 1, DIMENSIONS_MAX)?;
        let threshold = call.number(4)?;
        if threshold < 0.0 {
            return Err(call.reject(4, "must not be negative"));
        }
        // The product of the other bounds is below 2^55, so that this one cannot overflow.
        let points_max = (COORDINATES_MAX / dimensions).min(MULTIPLICATIONS_MAX / (k * epochs * dimensions));
        let points = call.count(5, 1, POINTS_MAX.min(points_max))?;
        let population = call.count(6, points, u64::MAX)?;
        let narrow = |number| usize::try_from(number).expect("within bounds that fit");
        Ok(Self {
            id: id_of(call)?,
            k: narrow(k),
            epochs,
            dimensions: narrow(dimensions),
            threshold,
            points: narrow(points),
            population,
            seed: call.integer(7)?,
        })
    }

    /// The numbers of the profiles to cluster: all different, in the order in which they were drawn.
    fn sample(&self) -> Vec<u64> {
        // Floyd's sampling: one draw a number, however many of the population are wanted.
        let mut sequence = RandomSequence::new(self.seed);
        let mut drawn = BTreeSet::new();
        let mut sample = Vec::with_capacity(self.points);
        for last in self.population - self.points as u64..self.population {
            let draw = match last.checked_add(1) {
                Some(bound) => sequence.below(bound),
                None => sequence.next(),
            };
            let number = if drawn.insert(draw) { draw } else { last };
            drawn.insert(number);
            sample.push(number);
        }
        assert_eq!(drawn.len(), self.points, "all numbers of a sample differ");
        sample
    }
}

async fn get_food(tx: &mut dyn ContractStub, call: &FunctionCall<'_>) -> Result<ContractResponse, ContractError> {
    let request = TrainingRequest::from(call)?;
    let profile = read_profile(tx, request.id).await?;
    check_dimensions(request.id, &profile, request.dimensions)?;
    let points = read_profiles(tx, request.sample(), request.dimensions).await?;
    let mut clustering = Clustering::new(points, request.dimensions, request.k, request.epochs, request.threshold);
    let clustering = rt::compute(async move {
        while !clustering.step(STEP_MULTIPLICATIONS) {
            rt::yield_now().await;
        }
        clustering
    })
    .await;
    let (cluster, distance) = clustering.classify(&profile);
    let food = Food {
        cluster,
        clusters: clustering.clusters(),
        distance,
        epochs: clustering.epochs(),
        error: clustering.error(),
    };
    let food = Bytes::from(serde_json::to_vec(&food).expect("finite numbers are always JSON"));
    tx.put_state(&food_key(request.id), food.clone())?;
    Ok(ContractResponse::success(food))
}

/// Finds the nearest of the first profiles.
async fn predict(tx: &mut dyn ContractStub, call: &FunctionCall<'_>) -> Result<ContractResponse, ContractError> {
    let k = call.count(0, 1, CLUSTERS_MAX)?;
    let vector = values_of(call)?;
    let centroids = read_profiles(tx, 0..k, vector.len()).await?;
    let (cluster, distance) = nearest(&centroids, &vector);
    let prediction = Prediction { cluster, distance: distance.sqrt() };
    Ok(ContractResponse::success(serde_json::to_vec(&prediction).expect("finite numbers are always JSON")))
}

/// The coordinates of these profiles, one after the other.
async fn read_profiles(
    tx: &mut dyn ContractStub,
    numbers: impl IntoIterator<Item = u64>,
    dimensions: usize,
) -> Result<Vec<f64>, ContractError> {
    /// How many profiles are asked for at once.
    const PROFILES_OF_A_READ: usize = 256;
    let ids: Vec<String> = numbers.into_iter().map(|number| number.to_string()).collect();
    let mut points = Vec::with_capacity(ids.len() * dimensions);
    for ids in ids.chunks(PROFILES_OF_A_READ) {
        let keys: Vec<String> = ids.iter().map(|id| profile_key(id)).collect();
        for (id, record) in ids.iter().zip(tx.get_states(&keys).await?) {
            let point = decode_profile(id, record)?;
            check_dimensions(id, &point, dimensions)?;
            points.extend_from_slice(&point);
        }
    }
    Ok(points)
}

fn check_dimensions(id: &str, profile: &[f64], dimensions: usize) -> Result<(), ContractError> {
    if profile.len() == dimensions {
        return Ok(());
    }
    let message = format!("the profile of {} has {} dimensions, not {dimensions}", shown(id), profile.len());
    Err(ContractError::application(message))
}

/// Writes a profile without reading the old one. Each of `values` is a number or several with commas between.
fn update_profile(tx: &mut dyn ContractStub, call: &FunctionCall<'_>) -> Result<ContractResponse, ContractError> {
    let id = id_of(call)?;
    let profile = values_of(call)?;
    tx.put_state(&profile_key(id), encode_profile(&profile))?;
    Ok(ContractResponse::empty())
}

/// The numbers in the arguments after the first one, at least one.
fn values_of(call: &FunctionCall<'_>) -> Result<Vec<f64>, ContractError> {
    let mut profile = Vec::new();
    for index in 1..call.len() {
        for value in call.text(index)?.split(',') {
            if profile.len() as u64 == DIMENSIONS_MAX {
                return Err(call.reject(index, &format!("has more than {DIMENSIONS_MAX} numbers")));
            }
            match value.trim().parse::<f64>() {
                Ok(number) if number.abs() <= COORDINATE_MAX => profile.push(number),
                _ => {
                    let wrong = format!("has no number of at most {COORDINATE_MAX:e}: {:?}", shown(value));
                    return Err(call.reject(index, &wrong));
                }
            }
        }
    }
    Ok(profile)
}

/// Writes profiles `start` to `start + count` and answers how many. It reads nothing and replaces what is there.
fn load(tx: &mut dyn ContractStub, call: &FunctionCall<'_>) -> Result<ContractResponse, ContractError> {
    let start = call.count(0, 0, u64::MAX - LOAD_PROFILES_MAX)?;
    let count = call.count(1, 1, LOAD_PROFILES_MAX)?;
    let dimensions = call.count(2, 1, DIMENSIONS_MAX.min(COORDINATES_MAX / count))?;
    let dimensions = usize::try_from(dimensions).expect("within bounds that fit");
    let seed = call.integer(3)?;
    for number in start..start + count {
        let profile = loaded_profile(seed, number, dimensions);
        tx.put_state(&profile_key(&number.to_string()), encode_profile(&profile))?;
    }
    Ok(ContractResponse::success(count.to_string()))
}

fn id_of<'a>(call: &FunctionCall<'a>) -> Result<&'a str, ContractError> {
    let id = call.text(0)?;
    if (1..=ID_BYTES_MAX).contains(&id.len()) {
        return Ok(id);
    }
    Err(call.reject(0, &format!("has 1 to {ID_BYTES_MAX} bytes, not {}", id.len())))
}

async fn read_profile(tx: &mut dyn ContractStub, id: &str) -> Result<Vec<f64>, ContractError> {
    let record = tx.get_state(&profile_key(id)).await?;
    decode_profile(id, record)
}

fn encode_profile(profile: &[f64]) -> Bytes {
    let mut record = Vec::with_capacity(profile.len() * COORDINATE_BYTES);
    for coordinate in profile {
        record.extend_from_slice(&coordinate.to_le_bytes());
    }
    record.into()
}

fn decode_profile(id: &str, record: Option<Bytes>) -> Result<Vec<f64>, ContractError> {
    let record = record.ok_or_else(|| ContractError::application(format!("there is no profile of {}", shown(id))))?;
    let (coordinates, rest) = record.as_chunks::<COORDINATE_BYTES>();
    let profile: Vec<f64> = coordinates.iter().map(|coordinate| f64::from_le_bytes(*coordinate)).collect();
    let is_sound = rest.is_empty() && profile.iter().all(|coordinate| coordinate.abs() <= COORDINATE_MAX);
    if !is_sound {
        return Err(ContractError::application(format!("the record of profile {} is damaged", shown(id))));
    }
    Ok(profile)
}

#[cfg(test)]
mod tests;
