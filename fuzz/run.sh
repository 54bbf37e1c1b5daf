#!/usr/bin/env bash
# Run every fuzz target in turn: `fuzz/run.sh SECONDS [TARGET...]`. What is found new stays in target/fuzz/corpus for the next run;
# an input that breaks something ends the run and is named. It belongs into fuzz/corpus/TARGET, where `cargo test` replays it.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(jpeg png webp gif bmp tiff ppm heif spellings scan splice heads framer)

toolchain=${FUZZ_TOOLCHAIN:-nightly}
cargo "+$toolchain" --version >/dev/null 2>&1 || {
    echo "fuzzing needs a nightly Rust: rustup toolchain install nightly --profile minimal" >&2
    exit 1
}
export PATH="$PWD/target/tools/bin:$PATH"
command -v cargo-fuzz >/dev/null || cargo install --quiet --locked --root target/tools cargo-fuzz

# Without a sanitizer: the only unsafe code is C, which the Rust toolchain does not instrument anyway.
cargo "+$toolchain" fuzz build --fuzz-dir fuzz --target-dir target/fuzz --sanitizer none --debug-assertions
mkdir -p target/fuzz/artifacts
for target in "${targets[@]}"; do
    corpora=("target/fuzz/corpus/$target" "fuzz/corpus/$target")
    [ ! -d "target/fuzz/seeds/$target" ] || corpora+=("target/fuzz/seeds/$target")
    mkdir -p "${corpora[0]}"
    echo "fuzz $target, $seconds s"
    target/fuzz/*/release/"$target" -max_total_time="$seconds" -rss_limit_mb=1024 -timeout=10 -max_len=8192 -verbosity=0 \
        -print_final_stats=1 -artifact_prefix="target/fuzz/artifacts/$target-" "${corpora[@]}" 2>&1 |
        { grep -vE '^(INFO|WARNING: Failed|\s+NEW_FUNC|#|"|stat::(new|slow|average))|^$' || true; }
done
