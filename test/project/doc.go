// Package project holds no code: its tests hold what the project says of itself against what is so. Every block of Go, YAML, JSON
// and shell in README.md and docs/ is compiled, read by the real parser or given to the real programs; every link leads
// somewhere; every test that a page names exists; the scripts that set up and release do what they say.
package project
