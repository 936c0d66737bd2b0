//! Prediction: clients send vectors, and learn which of the centroids on the ledger is nearest (FlexChain, section 2.1 and
//! figure 1).
//!
//! The paper's 20 centroids of 10,000 dimensions are 80 KB each. They are drawn at random, as training is not part of
//! the workload.

use contract::contracts::kmeans::LOAD_PROFILES_MAX;
use serde_json::{Map, Value};

use super::{CallGenerator, ContractCall, Workload};
use crate::random::Random;

/// The workload's parameters.
#[derive(Clone, Debug)]
pub struct Predictions {
    /// Number of centroids.
    pub clusters: u64,
    /// Coordinates of a centroid.
    pub dimensions: u64,
    /// Fixes the centroids.
    pub seed: u64,
}

impl Default for Predictions {
    fn default() -> Predictions {
        Predictions { clusters: 20, dimensions: 10_000, seed: 1 }
    }
}

impl Workload for Predictions {
    fn name(&self) -> &'static str {
        "prediction"
    }

    fn contract(&self) -> &'static str {
        "kmeans"
    }

    fn parameters(&self) -> Map<String, Value> {
        Map::from_iter([("k".to_owned(), self.clusters.into()), ("dimensions".to_owned(), self.dimensions.into())])
    }

    fn load(&self) -> Vec<ContractCall> {
        assert!(self.clusters <= LOAD_PROFILES_MAX, "one call loads them");
        let arguments = [0, self.clusters, self.dimensions, self.seed];
        vec![ContractCall::new("load", arguments.map(|number| number.to_string()))]
    }

    fn generator(&self, _client: usize, random: Random) -> Box<dyn CallGenerator> {
        Box::new(PredictionClient { random, parameters: self.clone() })
    }
}

struct PredictionClient {
    random: Random,
    parameters: Predictions,
}

impl CallGenerator for PredictionClient {
    fn next(&mut self) -> ContractCall {
        let coordinates: Vec<String> =
            (0..self.parameters.dimensions).map(|_| format!("{:.4}", self.random.unit())).collect();
        ContractCall::new("predict", [self.parameters.clusters.to_string(), coordinates.join(",")])
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::execute;
    use super::*;

    #[test]
    fn the_contract_takes_the_calls() {
        let predictions = Predictions { clusters: 5, dimensions: 30, seed: 2 };
        let mut generator = predictions.generator(0, Random::new(5));
        let calls: Vec<ContractCall> = (0..20).map(|_| generator.next()).collect();
        assert_ne!(calls[0], calls[1]);
        assert_eq!(execute(&predictions, calls.into_iter()), Vec::<String>::new());
    }
}
