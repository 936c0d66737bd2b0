//! Food distribution: clients update profiles, and cluster them to decide the distribution (FlexChain, section 6.1).
//!
//! Five percent of the transactions are `updateProfile`, which only writes. The others are `getFood`, which reads profiles,
//! clusters them and writes the result. Both choose ids uniformly, or by Zipf's law. A clustering then reads profiles of the first
//! of a population whose size is drawn by the same law, and is at least the number of points, which are different profiles. `k`, epochs, dimensions and threshold are the paper's
//! (section 6.2). The paper does not give the number of points that one clustering reads.

use contract::contracts::kmeans::{COORDINATES_MAX, LOAD_PROFILES_MAX};
use serde_json::{Map, Value};

use super::{CallGenerator, ContractCall, KeyChoice, Workload, chunks};
use crate::random::Random;
use crate::zipf::Zipf;

/// Profiles that one call loads: small blocks of work, so that progress shows.
const LOAD_STEP: u64 = 500;

/// The workload's parameters.
#[derive(Clone, Debug)]
pub struct KMeans {
    /// Number of profiles.
    pub profiles: u64,
    /// Profiles that one clustering reads.
    pub points: u64,
    /// Clusters.
    pub clusters: u64,
    /// Most epochs of one clustering.
    pub epochs: u64,
    /// Coordinates of a profile.
    pub dimensions: u64,
    /// The movement of the clusters below which the clustering ends.
    pub threshold: f64,
    /// How many of a hundred transactions are updates.
    pub updates_percent: u64,
    /// How profiles are chosen.
    pub choice: KeyChoice,
    /// Fixes the loaded profiles.
    pub seed: u64,
}

impl Default for KMeans {
    fn default() -> KMeans {
        KMeans {
            profiles: 20_000,
            points: 100,
            clusters: 20,
            epochs: 2_000,
            dimensions: 100,
            threshold: 0.01,
            updates_percent: 5,
            choice: KeyChoice::Uniform,
            seed: 1,
        }
    }
}

impl Workload for KMeans {
    fn name(&self) -> &'static str {
        "kmeans"
    }

    fn contract(&self) -> &'static str {
        "kmeans"
    }

    fn parameters(&self) -> Map<String, Value> {
        Map::from_iter([
            ("profiles".to_owned(), self.profiles.into()),
            ("points".to_owned(), self.points.into()),
            ("k".to_owned(), self.clusters.into()),
            ("epochs".to_owned(), self.epochs.into()),
            ("dimensions".to_owned(), self.dimensions.into()),
            ("threshold".to_owned(), self.threshold.into()),
            ("updates_percent".to_owned(), self.updates_percent.into()),
            ("choice".to_owned(), self.choice.to_json()),
        ])
    }

    fn load(&self) -> Vec<ContractCall> {
        let step = (COORDINATES_MAX / 8 / self.dimensions).clamp(1, LOAD_STEP.min(LOAD_PROFILES_MAX));
        chunks(self.profiles, step)
            .map(|(start, count)| {
                ContractCall::new("load", [start, count, self.dimensions, self.seed].map(|number| number.to_string()))
            })
            .collect()
    }

    fn generator(&self, _client: usize, random: Random) -> Box<dyn CallGenerator> {
        Box::new(KMeansClient { random, ids: self.choice.over(self.profiles), parameters: self.clone() })
    }
}

struct KMeansClient {
    random: Random,
    ids: Zipf,
    parameters: KMeans,
}

impl CallGenerator for KMeansClient {
    fn next(&mut self) -> ContractCall {
        let KMeans { profiles, points, clusters, epochs, dimensions, threshold, updates_percent, choice, .. } =
            self.parameters;
        let id = self.ids.draw(&mut self.random).to_string();
        if self.random.percent(updates_percent) {
            let coordinates: Vec<String> = (0..dimensions).map(|_| format!("{:.6}", self.random.unit())).collect();
            return ContractCall::new("updateProfile", [id, coordinates.join(",")]);
        }
        let population = match choice {
            KeyChoice::Uniform => profiles,
            KeyChoice::Zipf(_) => (self.ids.draw(&mut self.random) + 1).max(points),
        };
        let seed = self.random.draw() >> 1;
        let arguments = [
            id,
            clusters.to_string(),
            epochs.to_string(),
            dimensions.to_string(),
            threshold.to_string(),
            points.to_string(),
            population.to_string(),
            seed.to_string(),
        ];
        ContractCall::new("getFood", arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::execute;
    use super::*;

    #[test]
    fn calls_are_drawn_in_the_given_proportions_and_the_contract_takes_them() {
        let kmeans = KMeans { profiles: 60, points: 20, clusters: 4, dimensions: 5, ..KMeans::default() };
        let mut generator = kmeans.generator(0, Random::new(5));
        let calls: Vec<ContractCall> = (0..2_000).map(|_| generator.next()).collect();
        let updates = calls.iter().filter(|call| call.function == "updateProfile").count();
        assert!((70..130).contains(&updates), "{updates} updates");
        assert_eq!(execute(&kmeans, calls.into_iter().take(100)), Vec::<String>::new());
    }

    #[test]
    fn skewed_calls_prefer_the_first_profiles_and_the_contract_takes_them() {
        let choice = KeyChoice::Zipf(2.0);
        let kmeans = KMeans { profiles: 60, points: 20, clusters: 4, dimensions: 5, choice, ..KMeans::default() };
        let mut generator = kmeans.generator(0, Random::new(5));
        let calls: Vec<ContractCall> = (0..1_000).map(|_| generator.next()).collect();
        let first = calls.iter().filter(|call| *call.args[0] == *b"0").count();
        assert!((500..750).contains(&first), "60 % of all, were {first}");
        assert_eq!(execute(&kmeans, calls.into_iter().take(100)), Vec::<String>::new());
    }
}
