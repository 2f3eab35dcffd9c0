package celltree

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// A tree as its users write it becomes the limits.yaml that means the same.
func TestParse(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/accounts.yaml")
	must(t, err)
	p, err := Parse("accounts.yaml", data)
	must(t, err)
	const want = `unmatched: allow
limits:
  user:
    scopes:
      "*":
        rules:
          - {name: cell, algorithm: token-bucket, limit: 30, per: 1m, burst: 16}
        scopes:
          trade:
            rules:
              - {name: cell, algorithm: token-bucket, limit: 10, per: 15s, burst: 6}
      robot:
        rules:
          - {name: cell, algorithm: token-bucket, limit: 600, per: 1m, burst: 100}
        scopes:
          trade:
            rules:
              - {name: cell, unlimited: true}
`
	got := string(limitsyaml.Format(p))
	if got != want {
		t.Errorf("got\n%s", got)
	}
	if _, err := limitsyaml.Parse("written", []byte(got)); err != nil {
		t.Error(err)
	}
}

func TestParseFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                           "f:1:1: the file is empty; write schema, with a name and its limits under it",
		"limits: {}":                                 "f:1:1: limits: limits is not a field of the tree; write schema\nf:1:1: there is no schema, under which the names stand; write it",
		"- 1":                                        "f:1:1: the file is a list; write schema, with a name and its limits under it",
		"schema: {a: {limit: [1, 2, 3]}}":            "f:1:14: schema.a.limit: limit is not a field of a name; did you mean limits?",
		"schema: {a: {limits: [1, 2]}}":              "f:1:22: schema.a.limits: limits has 2 numbers; write [burst, count, seconds]",
		"schema: {a: {limits: 3}}":                   "f:1:22: schema.a.limits: limits is the number 3; write [burst, count, seconds]",
		"schema: {a: {limits: [-1, 0, x]}}":          "f:1:23: schema.a.limits[0]: the burst is the number -1; write a whole number from 0 to 2147483647\nf:1:27: schema.a.limits[1]: the count is the number 0; write a whole number from 1 to 2147483647\nf:1:30: schema.a.limits[2]: the period in seconds is the text \"x\"; write a whole number from 1 to 2147483647",
		"schema: {a: {limits: [1, 2.5, 3]}}":         "f:1:26: schema.a.limits[1]: the count is the number 2.5; write a whole number from 1 to 2147483647",
		"schema: {a/b: {limits: [1, 2, 3]}}":         "f:1:10: schema.\"a/b\": \"a/b\" holds a '/', which divides names; write another character",
		"schema: {a: {children: [b]}}":               "f:1:24: schema.a.children: children is a list; write names, each with its limits or children",
		"schema: {a: &x {limits: [1, 2, 3]}, b: *x}": "f:1:13: schema.a: a has an anchor, and anchors are not read; remove &x\nf:1:40: schema.b: b is an alias, and aliases are not read; write its value out",
		"schema: {\"*\": {limits: [1, 2, 3]}}":       "",
		"schema: {a: {}}":                            "",
	} {
		_, err := Parse("f", []byte(text))
		var refused *policy.Error
		if got := fmt.Sprint(err); err != nil && (!errors.As(err, &refused) || got != want) || err == nil && want != "" {
			t.Errorf("%s: got\n%s\nwant\n%s", text, got, want)
		}
	}
}

// Whatever names stand beside "*", each scope meets the limits that the tree has for it: the
// limits of the name, and those of "*" only where the name is not there.
func TestParseMeansTheTree(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		var text strings.Builder
		text.WriteString("schema:\n")
		tree := &node{children: grow(r, &text, 2, 4)}
		p, err := Parse("f", []byte(text.String()))
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text.String())
		}
		for range 30 {
			names := make([]string, 1+r.IntN(5))
			for i := range names {
				names[i] = string("abcd"[r.IntN(4)]) // d is in no tree
			}
			scope, err := policy.ParseScope(strings.Join(names, "/"))
			must(t, err)
			matched, err := p.Match(scope)
			must(t, err)
			got := map[int]int64{}
			for _, m := range matched {
				got[m.Scope.Len()] = m.Rule.Limit
			}
			if want := walk(tree, names); !maps.Equal(got, want) {
				t.Fatalf("seed %d, %s: limits by level are %v, and the tree has %v\n%s\n%s", seed, scope, got, want, text.String(), limitsyaml.Format(p))
			}
		}
	}
}

// grow writes children that are drawn at random, and returns them. No two have the same count.
func grow(r *rand.Rand, text *strings.Builder, indent, levels int) map[string]*node {
	all := map[string]*node{}
	names := []string{"*", "a", "b", "c"}
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range slices.Sorted(slices.Values(names[:1+r.IntN(3)])) {
		n := &node{}
		fmt.Fprintf(text, "%*s%q:\n", indent, "", name)
		if r.IntN(3) > 0 || levels == 1 {
			n.limits = &policy.Rule{Limit: 1 + r.Int64N(1<<30)}
			fmt.Fprintf(text, "%*slimits: [1, %d, 60]\n", indent+2, "", n.limits.Limit)
		}
		if n.limits == nil || levels > 1 && r.IntN(2) > 0 {
			fmt.Fprintf(text, "%*schildren:\n", indent+2, "")
			n.children = grow(r, text, indent+4, levels-1)
		}
		all[name] = n
	}
	return all
}

// walk is what the tree has for a scope: at each level the child of that name, else "*".
func walk(n *node, names []string) map[int]int64 {
	met := map[int]int64{}
	for i, name := range names {
		next := n.children[name]
		if next == nil {
			next = n.children["*"]
		}
		if next == nil {
			break
		}
		if next.limits != nil {
			met[i+1] = next.limits.Limit
		}
		n = next
	}
	return met
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
