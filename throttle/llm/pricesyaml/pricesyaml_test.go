package pricesyaml

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLoad(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "prices.yaml")
	if err := os.WriteFile(path, []byte("# a comment\nprices:\n  gpt-5.5*: {input: 1.25, cached: 0.125, output: 10}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err != nil {
		t.Error(err)
	}
	if _, err := Load(path + "x"); !os.IsNotExist(err) && !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
}

// Each fault has its line, and what to write instead.
func TestFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{m: {inptu: 1}}":            "prices.yaml:1:14: prices.m.inptu: inptu is no kind of tokens; did you mean input?",
		"{m: {input: -1}}":           "prices.m.input: input is the number -1; write US dollars for a million tokens, such as 1.25",
		"{m: {input: 1e3}}":          "write US dollars",
		`{m: {input: "1"}}`:          `input is the text "1"; write US dollars`,
		"{m: {input: 1_0}}":          "write US dollars",
		"{m: {input: $1}}":           "write US dollars",
		"{m: {input: }}":             "input is empty; write US dollars",
		"{m: {input: 5000}}":         "input is 5000; write US dollars for a million tokens, 0 to 1000",
		"{m: {input: 0.0000001}}":    "six decimals",
		"{m: {}}":                    "prices.m: m has no price of input; write it, such as {input: 1.25, output: 10}, and 0 if it costs nothing",
		"{m: {output: 10}}":          "m has no price of input",
		"{}":                         "prices.yaml:1:1: the file has no models; write prices: and models under it, such as gpt-5.5: {input: 1.25, output: 10}",
		"{m: 5}":                     "m is the number 5; write its prices",
		"{gpt-*-mini: {input: 1}}":   "is no model's name",
		"{m: {input: 1}, m: {a: 1}}": "m is there already, on line 1",
		"[m]":                        "prices is a list; write models",
		"{}\nlimits: {}":             "prices.yaml:2:1: limits: limits is not a field of the file; write prices: and models under it",
	} {
		if _, err := Parse("prices.yaml", []byte("prices: "+text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := Parse("prices.yaml", nil); err == nil || !strings.Contains(err.Error(), "the file is empty; write prices:") {
		t.Error(err)
	}
}
