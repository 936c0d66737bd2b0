//! K-means clustering (Lloyd's algorithm) whose result is the same on every machine, bit for bit.
//!
//! 1. The first centroids are the first `k` distinct points, in the order of the points. With fewer distinct points
//!    there are fewer clusters.
//! 2. An epoch assigns each point to its nearest centroid (the first of equally near ones), then moves each centroid to
//!    the mean of its points. A centroid without points stays.
//! 3. The error is the sum of the points' distances to their centroids. The algorithm has converged when an epoch
//!    changed the error by less than the threshold.
//!
//! Determinism: the only operations on f64 are addition, subtraction, multiplication, division and square root, which
//! IEEE 754 fixes, in an order that the code fixes. There is no fused multiply-add and no parallel sum. Comparisons use
//! the total order of f64.
//!
//! The work is cut into slices ([`Clustering::step`]), so that a caller can yield to other tasks between two slices.

/// Sums of squares are kept in this many lanes, which are added up in order at the end.
const LANES: usize = 4;

/// A clustering while it is computed.
#[derive(Debug)]
pub(super) struct Clustering {
    dimensions: usize,
    /// Point after point.
    points: Vec<f64>,
    /// Centroid after centroid.
    centroids: Vec<f64>,
    /// The sum of each cluster's points in the running epoch.
    sums: Vec<f64>,
    /// How many points each cluster has in the running epoch.
    sizes: Vec<u32>,
    next_point: usize,
    /// The sum of distances so far in the running epoch.
    running_error: f64,
    /// The sum of distances in the last whole epoch.
    error: f64,
    threshold: f64,
    epochs: u64,
    epochs_max: u64,
}

impl Clustering {
    /// Prepares to cluster `points`, which are given one after another, each with `dimensions` coordinates.
    pub(super) fn new(points: Vec<f64>, dimensions: usize, k: usize, epochs_max: u64, threshold: f64) -> Self {
        assert!(dimensions > 0 && k > 0 && epochs_max > 0, "a clustering has dimensions, clusters and epochs");
        assert!(!points.is_empty() && points.len().is_multiple_of(dimensions), "points are whole");
        let centroids = distinct_points(&points, dimensions, k);
        let clusters = centroids.len() / dimensions;
        Self {
            dimensions,
            points,
            sums: vec![0.0; centroids.len()],
            sizes: vec![0; clusters],
            centroids,
            next_point: 0,
            running_error: 0.0,
            error: 0.0,
            threshold,
            epochs: 0,
            epochs_max,
        }
    }

    /// Does the next slice of work, of about so many multiplications; whether that was the last.
    pub(super) fn step(&mut self, multiplications: usize) -> bool {
        let points = self.points.len() / self.dimensions;
        let slice = (multiplications / self.centroids.len()).max(1);
        let end = points.min(self.next_point + slice);
        for point in self.next_point..end {
            self.assign(point);
        }
        self.next_point = end;
        end == points && self.end_epoch()
    }

    fn assign(&mut self, point: usize) {
        let point = &self.points[point * self.dimensions..][..self.dimensions];
        let (cluster, squared) = nearest(&self.centroids, point);
        self.running_error += squared.sqrt();
        self.sizes[cluster] += 1;
        let sum = &mut self.sums[cluster * self.dimensions..][..self.dimensions];
        for (sum, coordinate) in sum.iter_mut().zip(point) {
            *sum += coordinate;
        }
    }

    /// Decides whether another epoch follows, and prepares it.
    fn end_epoch(&mut self) -> bool {
        self.epochs += 1;
        let has_converged = self.epochs > 1 && (self.error - self.running_error).abs() < self.threshold;
        let clusters =
            self.centroids.chunks_exact_mut(self.dimensions).zip(self.sums.chunks_exact_mut(self.dimensions));
        for ((centroid, sum), size) in clusters.zip(&mut self.sizes) {
            let points = f64::from(std::mem::take(size));
            for (coordinate, sum) in centroid.iter_mut().zip(sum) {
                let sum = std::mem::take(sum);
                if points > 0.0 {
                    *coordinate = sum / points;
                }
            }
        }
        self.error = std::mem::take(&mut self.running_error);
        self.next_point = 0;
        has_converged || self.epochs == self.epochs_max
    }

    /// How many clusters there are.
    pub(super) fn clusters(&self) -> usize {
        self.sizes.len()
    }

    /// How many epochs were run.
    pub(super) fn epochs(&self) -> u64 {
        self.epochs
    }

    /// The sum of distances in the last whole epoch.
    pub(super) fn error(&self) -> f64 {
        self.error
    }

    /// The cluster whose centroid is nearest to `point`, and its distance.
    pub(super) fn classify(&self, point: &[f64]) -> (usize, f64) {
        assert_eq!(point.len(), self.dimensions, "points have equally many coordinates");
        let (cluster, squared) = nearest(&self.centroids, point);
        (cluster, squared.sqrt())
    }
}

/// The first `k` points that differ from one another.
fn distinct_points(points: &[f64], dimensions: usize, k: usize) -> Vec<f64> {
    let mut distinct: Vec<f64> = Vec::new();
    for point in points.chunks_exact(dimensions) {
        if distinct.len() == k * dimensions {
            break;
        }
        if !distinct.chunks_exact(dimensions).any(|other| other == point) {
            distinct.extend_from_slice(point);
        }
    }
    distinct
}

/// The nearest of `centroids` and the square of its distance.
pub(super) fn nearest(centroids: &[f64], point: &[f64]) -> (usize, f64) {
    let distances = centroids.chunks_exact(point.len()).map(|centroid| squared_distance(centroid, point));
    let nearest =
        distances.enumerate().reduce(|best, next| if next.1.total_cmp(&best.1).is_lt() { next } else { best });
    nearest.expect("there is at least one centroid")
}

fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    let mut lanes = [0.0; LANES];
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            let difference = a[lane] - b[lane];
            lanes[lane] += difference * difference;
        }
    }
    let mut sum = 0.0;
    for (a, b) in a_rest.iter().zip(b_rest) {
        sum += (a - b) * (a - b);
    }
    for lane in lanes {
        sum += lane;
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cluster(points: &[f64], dimensions: usize, k: usize, epochs_max: u64, threshold: f64) -> Clustering {
        let mut clustering = Clustering::new(points.to_vec(), dimensions, k, epochs_max, threshold);
        while !clustering.step(usize::MAX) {}
        clustering
    }

    #[test]
    fn two_clouds_are_told_apart() {
        let points = [0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 10.0, 10.0, 10.0, 11.0, 11.0, 10.0];
        let clustering = cluster(&points, 2, 2, 100, 1e-9);
        let (near, _) = clustering.classify(&[0.5, 0.5]);
        let (far, distance) = clustering.classify(&[10.0, 10.0]);
        assert_ne!(near, far);
        assert!((distance - 2.0_f64.sqrt() / 3.0).abs() < 1e-12);
        assert_eq!(clustering.clusters(), 2);
        assert!((2..10).contains(&clustering.epochs()));
    }

    #[test]
    fn equal_points_make_one_cluster() {
        let clustering = cluster(&[3.0; 12], 2, 5, 10, 0.0);
        assert_eq!(clustering.clusters(), 1);
        assert_eq!(clustering.error().to_bits(), 0.0_f64.to_bits());
        assert_eq!(clustering.epochs(), 10, "a threshold of 0 is never passed");
    }

    #[test]
    fn epochs_are_bounded() {
        let points: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(cluster(&points, 1, 10, 3, 0.0).epochs(), 3);
        assert_eq!(cluster(&points, 1, 10, 1, 1e9).epochs(), 1);
        assert_eq!(cluster(&points, 1, 10, 9, 1e9).epochs(), 2, "convergence compares two epochs");
    }

    #[test]
    fn distance_is_summed_in_a_fixed_order() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        assert_eq!(squared_distance(&a, &[0.0; 6]).to_bits(), 91.0_f64.to_bits());
    }

    proptest! {
        #[test]
        fn slices_do_not_change_the_result(
            points in prop::collection::vec([-1e6..1e6_f64, -1e6..1e6], 1..20),
            k in 1..6_usize,
            multiplications in 0..40_usize,
        ) {
            let points = points.concat();
            let whole = cluster(&points, 2, k, 20, 1e-6);
            let mut sliced = Clustering::new(points, 2, k, 20, 1e-6);
            while !sliced.step(multiplications) {}
            let bits = |clustering: &Clustering| {
                let numbers = clustering.centroids.iter().chain([&clustering.error]);
                numbers.map(|number| number.to_bits()).collect::<Vec<u64>>()
            };
            prop_assert_eq!(bits(&whole), bits(&sliced));
        }

        #[test]
        fn squared_error_never_grows_with_more_epochs(
            points in prop::collection::vec(-100.0..100.0_f64, 8..60),
            k in 1..6_usize,
            epochs in 1..20_u64,
        ) {
            let squared_error = |epochs| {
                let clustering = cluster(&points, 1, k, epochs, 0.0);
                points.iter().map(|point| clustering.classify(&[*point]).1.powi(2)).sum::<f64>()
            };
            prop_assert!(squared_error(epochs + 1) <= squared_error(epochs) + 1e-6);
        }
    }
}
