//! Mistakes that the tests of the shim plant, and must catch.

base::mutants! {
    "contract.shim" {
        /// A call that was abandoned gives its name away at once, while the chaincode may still be at it.
        ForgetAbandoned,
    }
}
