//! The files of a new chaincode.

use crate::cli::chaincode::ChaincodeLanguage;

/// The name that stands for the chaincode's in the files.
const NAME: &str = "heddle-chaincode-name";

/// Paths and texts of a new chaincode.
pub fn files(language: ChaincodeLanguage, name: &str) -> Vec<(&'static str, String)> {
    let files: &[(&str, &str)] = match language {
        ChaincodeLanguage::Go => &[
            ("go.mod", include_str!("../../templates/go/go.mod.txt")),
            ("main.go", include_str!("../../templates/go/main.go.txt")),
            ("assets.go", include_str!("../../templates/go/assets.go.txt")),
            ("assets_test.go", include_str!("../../templates/go/assets_test.go.txt")),
            (".gitignore", "/.heddle/\n"),
        ],
        ChaincodeLanguage::Typescript => &[
            ("package.json", include_str!("../../templates/typescript/package.json.txt")),
            ("tsconfig.json", include_str!("../../templates/typescript/tsconfig.json.txt")),
            ("src/index.ts", include_str!("../../templates/typescript/index.ts.txt")),
            ("src/assets.ts", include_str!("../../templates/typescript/assets.ts.txt")),
            ("test/assets.test.js", include_str!("../../templates/typescript/assets.test.js.txt")),
            (".gitignore", "/node_modules/\n/dist/\n"),
        ],
        ChaincodeLanguage::Java => &[
            ("pom.xml", include_str!("../../templates/java/pom.xml.txt")),
            ("src/main/java/org/example/Assets.java", include_str!("../../templates/java/Assets.java.txt")),
            ("src/test/java/org/example/AssetsTest.java", include_str!("../../templates/java/AssetsTest.java.txt")),
            (".gitignore", "/target/\n"),
        ],
    };
    files.iter().map(|(path, text)| (*path, text.replace(NAME, name))).collect()
}
