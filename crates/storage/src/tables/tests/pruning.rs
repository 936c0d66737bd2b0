use base::rt::production;
use base::rt::simulation::Simulation;

use super::*;

/// Prunes in steps of `rows_max` rows to the end of the tables; returns the number of rows removed.
fn prune_all(tables: &dyn Tables, oldest: u64, rows_max: usize) -> usize {
    let mut removed = 0;
    for _ in 0..10_000 {
        let pruned = tables.prune(BlockNumber(oldest), rows_max).expect("the disk is well");
        assert!(pruned.scanned <= rows_max.max(PRUNE_ROWS_MIN));
        removed += pruned.removed;
        if pruned.finished {
            return removed;
        }
    }
    panic!("pruning does not come to an end");
}

async fn superseded_rows_go_and_readable_ones_stay(mut engine: Engine) {
    for rows_max in [1, 3, 100] {
        let name = format!("channel{rows_max}");
        let tables = engine.tables(&name).await;
        write_block(&*tables, 0, "a=0 b=0 c=0 d=0");
        write_block(&*tables, 1, "a=1 b! c=1");
        write_block(&*tables, 2, "a=2 c!");
        write_block(&*tables, 3, "a=3 e!");
        tables.persist().await.expect("the disk is well");
        write_block(&*tables, 4, "d!");
        write_block(&*tables, 5, "a=5");
        // Superseded at 4: a@0-2, b@0, c@0-1, d@0. Deletions that may go: b, c, e; d's is not durably covered.
        assert_eq!(prune_all(&*tables, 4, rows_max), 3 + 1 + 2 + 1 + 3);
        for through in [4, 5] {
            let a = if through == 4 { "3:0=3" } else { "5:0=5" };
            assert_eq!(show(&*tables, "a", through), a);
            for gone in ["b", "c", "e"] {
                assert_eq!(show(&*tables, gone, through), "-", "rows_max {rows_max}");
            }
            assert_eq!(show(&*tables, "d", through), "4:0!");
        }
        assert_eq!(prune_all(&*tables, 4, rows_max), 0);
        tables.persist().await.expect("the disk is well");
        assert_eq!(prune_all(&*tables, 5, rows_max), 2, "the deletion of d, and a@3");
        tables.persist().await.expect("the disk is well");
        drop(tables);
        engine.close();
        let tables = engine.tables(&name).await;
        assert_eq!(show_range(&*tables, "", "", 5, 10), "a=5");
        assert_eq!(show(&*tables, "d", 5), "-");
    }
}

#[test]
fn superseded_rows_go_and_readable_ones_stay_on_model() {
    Simulation::new(1).check(|_| superseded_rows_go_and_readable_ones_stay(Engine::model())).expect("the run succeeds");
}

#[test]
fn superseded_rows_go_and_readable_ones_stay_on_fjall() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(superseded_rows_go_and_readable_ones_stay(Engine::fjall(scratch.path().join("engine"))));
}
