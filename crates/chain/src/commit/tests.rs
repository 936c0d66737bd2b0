//! Tests of the commit pipeline.
