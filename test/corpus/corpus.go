// Package corpus gathers the texts that tests give to parsers, so that others may be held
// against the same: test/bench/schemas holds the JSON Schemas against them.
//
// The package imports testing and may be imported by tests only.
package corpus

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
)

// Variable is the environment variable that names the directory that the texts are written to.
// Where it is not set nothing is written.
const Variable = "HEADWAY_CORPUS"

// Add adds a text of a kind. The same text is there once.
func Add(tb testing.TB, kind, text string) {
	tb.Helper()
	dir := os.Getenv(Variable)
	if dir == "" {
		return
	}
	sum := sha256.Sum256([]byte(text))
	path := filepath.Join(dir, kind, hex.EncodeToString(sum[:8])+".yaml")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}
