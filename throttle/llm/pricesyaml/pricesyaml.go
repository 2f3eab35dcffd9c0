// Package pricesyaml reads what language models cost from a file, for package llm:
//
//	prices:
//	  gpt-5.5*: {input: 1.25, cached: 0.125, output: 10}
//	  claude-sonnet-5*: {input: 3, cached: 0.30, cache_write: 3.75, cache_write_1h: 6, output: 15}
//
// Prices are in US dollars for a million tokens.
package pricesyaml

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/strictyaml"
	"github.com/headway-go/headway/throttle/llm"
	"github.com/headway-go/headway/throttle/policy"
)

const example = "{input: 1.25, output: 10}"

var file = strictyaml.Format{
	TooLong: `let names that end in "*" stand for several models`,
	Empty:   "write prices: and models under it, such as gpt-5.5: " + example,
}

// Load reads the prices at path. The error is a *policy.Error that names path, or that of the file system.
func Load(path string) (*llm.Prices, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("llm: read prices: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written that could be lost
	data, err := io.ReadAll(io.LimitReader(f, strictyaml.MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("llm: read prices: %w", err)
	}
	return Parse(path, data)
}

// Parse reads prices from a text of at most 4 MiB. name is its name in errors. The error is a *policy.Error with every fault of the text,
// each with its line and column.
func Parse(name string, data []byte) (*llm.Prices, error) {
	r := &reader{}
	models := r.models(file.Read(data, &r.Faults))
	if !r.None() {
		return nil, &policy.Error{Name: name, Faults: r.All()}
	}
	return llm.NewPrices(models)
}

type reader struct{ strictyaml.Faults }

func (r *reader) models(root *yaml.Node) map[string]llm.Price {
	const want = "prices: and models under it, such as gpt-5.5: " + example
	whole := strictyaml.Field{Label: "the file", Key: root, Value: root}
	if root == nil || !r.Is(whole, yaml.MappingNode, "", want) {
		return nil
	}
	models := map[string]llm.Price{}
	for _, top := range r.Fields(root, "") {
		if top.Name != "prices" {
			r.Add(strictyaml.PlaceOf(top.Key), top.Path, top.Label+" is not a field of the file; write "+want)
		} else if r.Is(top, yaml.MappingNode, top.Path, "models under it, such as gpt-5.5: "+example) {
			for _, f := range r.Fields(top.Value, top.Path) {
				models[f.Name] = r.prices(f)
			}
		}
	}
	if len(models) == 0 && r.None() {
		r.Add(diag.Start, "", "the file has no models; write "+want)
	}
	return models
}

// prices reads the prices of a model.
func (r *reader) prices(model strictyaml.Field) llm.Price {
	if at := strings.IndexByte(model.Name, '*'); model.Name == "" || at >= 0 && at < len(model.Name)-1 {
		r.Add(strictyaml.PlaceOf(model.Key), model.Path, "is no model's name; write one, with * at its end alone for all that begin so")
	}
	if !r.Is(model, yaml.MappingNode, model.Path, "its prices, such as "+example) {
		return nil
	}
	price := llm.Price{}
	for _, f := range r.Fields(model.Value, model.Path) {
		if !slices.Contains(llm.Kinds(), f.Name) {
			r.Add(strictyaml.PlaceOf(f.Key), f.Path, f.Label+" is no kind of tokens; "+diag.Meant(f.Name, llm.Kinds()))
			continue
		}
		price[f.Name] = r.price(f)
	}
	if _, has := price["input"]; !has && 2*len(price) == len(model.Value.Content) { // else it is perhaps misspelt
		r.Bad(model, model.Path, "has no price of input; write it, such as %s, and 0 if it costs nothing", example)
	}
	return price
}

// price reads a number in plain digits.
func (r *reader) price(f strictyaml.Field) float64 {
	const want = "US dollars for a million tokens, such as 1.25"
	if !r.Is(f, yaml.ScalarNode, f.Path, want) {
		return 0
	}
	text := f.Value.Value
	n, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || strings.Trim(text, "0123456789.") != "" || text[0] == '.' || f.Value.Style != 0:
		r.Bad(f, f.Path, "is %s; write %s", strictyaml.Describe(f.Value), want)
	case llm.Fault(n) != "":
		r.Bad(f, f.Path, "%s", llm.Fault(n))
	}
	return n
}
