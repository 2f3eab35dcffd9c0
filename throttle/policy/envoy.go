package policy

import (
	"iter"
	"slices"
	"strings"
)

// Descriptor is one of ScopeConfig.Envoy: descriptors of a domain whose entries have these keys, in this order, spend from a scope
// that begins with Scope and goes on with the values of the keys that have none here.
type Descriptor struct {
	Domain string
	Keys   []DescriptorKey
	Scope  Scope
}

// DescriptorKey is the key of an entry. If it is Fixed, the entry has that Value.
type DescriptorKey struct {
	Key, Value string
	Fixed      bool
}

// Descriptors iterates over what the policy says of Envoy's descriptors, in no order.
func (p *Policy) Descriptors() iter.Seq[Descriptor] {
	return func(yield func(Descriptor) bool) { p.root.descriptors(yield) }
}

func (t *tree) descriptors(yield func(Descriptor) bool) bool {
	for _, text := range t.Envoy {
		words := strings.Fields(text)
		d := Descriptor{Domain: words[0], Scope: Scope{text: t.path}}
		for _, word := range words[1:] {
			key, value, fixed := strings.Cut(word, "=")
			d.Keys = append(d.Keys, DescriptorKey{key, value, fixed})
		}
		if !yield(d) {
			return false
		}
	}
	for _, child := range t.scopes {
		if !child.descriptors(yield) {
			return false
		}
	}
	return true
}

// envoyFault returns why a text is no descriptor of the scope at a place, empty if it is.
func envoyFault(text, place string) string {
	words := strings.Fields(text)
	switch {
	case len(words) < 2 || strings.Join(words, " ") != text:
		return "is no domain with keys; write them with one blank between, such as edge tenant path"
	case strings.Contains(text, ","):
		return "has a comma; write a domain and keys with one blank between, such as edge tenant path"
	case slices.ContainsFunc(SplitPlace(place), func(level string) bool { return !OneName(level) }):
		return "stands at or below * or a tier, which names no scope; write it above, and let a key name the scope"
	}
	for _, word := range words[1:] {
		if strings.HasPrefix(word, "=") {
			return "has a value without a key; write KEY or KEY=VALUE"
		}
	}
	return ""
}
