// Package celltree reads a tree of limits as it is written for the Redis module redis-cell:
// names under children, with "*" where no other name matches, and under limits the three
// numbers that CL.THROTTLE takes. It makes the same limits of it as a limits.yaml has.
package celltree

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/strictyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// RuleName is the name of the one rule that a level has.
const RuleName = "cell"

const (
	anyName  = "*"
	maxBurst = 1<<31 - 1
)

var (
	treeFields = []string{"schema"}
	nodeFields = []string{"limits", "children"}
	numbers    = [3]string{"the burst", "the count", "the period in seconds"}

	format = strictyaml.Format{
		TooLong: "divide it",
		Empty:   "write schema, with a name and its limits under it",
	}
)

// node is a name of the tree with what is under it.
type node struct {
	limits   *policy.Rule // nil for none
	children map[string]*node
}

// Parse reads a tree; name is what errors call it. The error is a *policy.Error with every
// fault of the text, or of the limits that would come of it.
//
// LIMITER key 15 30 60 admits 16 requests at once and 30 in each 60 seconds on average: a
// token bucket of 30 per minute with a burst of 16. A name beside "*" has its own limits and
// children alone, which limits.yaml says by taking away what "*" has. What meets no limit is
// allowed.
func Parse(name string, data []byte) (*policy.Policy, error) {
	r := &reader{}
	tree := node{}
	if root := format.Read(data, &r.Faults); root != nil {
		tree = r.root(root)
	}
	if !r.None() {
		return nil, &policy.Error{Name: name, Faults: r.All()}
	}
	return policy.New(policy.UnmatchedAllow, limits(&tree, nil))
}

// limits are the levels under a node. Those of inherited count there too by "*", unless what is
// said of a level takes their place.
func limits(n *node, inherited []*node) map[string]policy.ScopeConfig {
	names := map[string]bool{}
	for _, from := range append([]*node{n}, inherited...) {
		for name := range from.children {
			names[name] = true
		}
	}
	all := map[string]policy.ScopeConfig{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		child, others := below(n, inherited, name)
		level := policy.ScopeConfig{Scopes: limits(child, others)}
		switch {
		case child.limits != nil:
			level.Rules = []policy.Rule{*child.limits}
		case slices.ContainsFunc(others, func(o *node) bool { return o.limits != nil }):
			level.Rules = []policy.Rule{{Name: RuleName, Unlimited: true}}
		}
		all[name] = level
	}
	return all
}

// below returns what the tree says of a name under n, and what would be inherited there.
func below(n *node, inherited []*node, name string) (child *node, others []*node) {
	child = &node{}
	for _, own := range []string{anyName, name} {
		if c := n.children[own]; c != nil {
			child = c
		}
	}
	for _, from := range append([]*node{n}, inherited...) {
		for _, by := range []string{anyName, name} {
			if c := from.children[by]; c != nil && (from != n || by != name) && !slices.Contains(others, c) {
				others = append(others, c)
			}
		}
	}
	return child, others
}

// reader turns the nodes of a text into a tree, and gathers every fault on the way.
type reader struct{ strictyaml.Faults }

func (r *reader) root(n *yaml.Node) (tree node) {
	if n.Kind != yaml.MappingNode {
		r.Add(strictyaml.PlaceOf(n), "", "the file is "+strictyaml.Describe(n)+"; write schema, with a name and its limits under it")
		return tree
	}
	found := false
	for _, f := range r.Fields(n, "") {
		if f.Name != "schema" {
			r.unknown(f, f.Name, "the tree", treeFields)
			continue
		}
		found = true
		tree.children = r.children(f, f.Name)
	}
	if !found {
		r.Add(strictyaml.PlaceOf(n), "", "there is no schema, under which the names stand; write it")
	}
	return tree
}

// children reads names with what is under each.
func (r *reader) children(f strictyaml.Field, path string) map[string]*node {
	all := map[string]*node{}
	if !r.Is(f, yaml.MappingNode, path, "names, each with its limits or children") {
		return all
	}
	for _, child := range r.Fields(f.Value, path) {
		at := diag.PathTo(path, child.Name)
		if reason := diag.NameReason(child.Name); reason != "" {
			r.Add(strictyaml.PlaceOf(child.Key), at, child.Label+" "+reason)
		}
		all[child.Name] = r.node(child, at)
	}
	return all
}

func (r *reader) node(f strictyaml.Field, path string) *node {
	n := &node{}
	if !r.Is(f, yaml.MappingNode, path, "limits, children or both") {
		return n
	}
	for _, field := range r.Fields(f.Value, path) {
		switch at := diag.PathTo(path, field.Name); field.Name {
		case "limits":
			n.limits = r.limits(field, at)
		case "children":
			n.children = r.children(field, at)
		default:
			r.unknown(field, at, "a name", nodeFields)
		}
	}
	return n
}

// limits reads the three numbers of CL.THROTTLE.
func (r *reader) limits(f strictyaml.Field, path string) *policy.Rule {
	if !r.Is(f, yaml.SequenceNode, path, "[burst, count, seconds]") {
		return nil
	}
	if len(f.Value.Content) != len(numbers) {
		r.Bad(f, path, "has %d numbers; write [burst, count, seconds]", len(f.Value.Content))
		return nil
	}
	var read [3]int64
	for i, n := range f.Value.Content {
		least := int64(min(i, 1)) // the burst may be 0
		value, err := strconv.ParseInt(n.Value, 10, 64)
		if n.Kind != yaml.ScalarNode || err != nil || value < least || value > maxBurst {
			r.Add(strictyaml.PlaceOf(n), fmt.Sprintf("%s[%d]", path, i), fmt.Sprintf("%s is %s; write a whole number from %d to %d", numbers[i], strictyaml.Describe(n), least, maxBurst))
		}
		read[i] = value
	}
	return &policy.Rule{Name: RuleName, Algorithm: policy.TokenBucket, Burst: read[0] + 1, Limit: read[1], Per: time.Duration(read[2]) * time.Second}
}

func (r *reader) unknown(f strictyaml.Field, path, owner string, known []string) {
	r.Add(strictyaml.PlaceOf(f.Key), path, fmt.Sprintf("%s is not a field of %s; %s", f.Label, owner, diag.Meant(f.Name, known)))
}
