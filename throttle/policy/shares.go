package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/strictyaml"
)

// Share is what a name is to get of what the rules of the level above it let through,
// while others wait there.
type Share struct {
	// Guaranteed is the guaranteed part in percent, 0 for none, at most 100 with those of the
	// other names. What nobody uses is lent at once.
	Guaranteed int64 `json:"part,omitempty"`
	// Weight shares the rest out, 1 to 1000. Defaults to 1.
	Weight int64 `json:"weight,omitempty"`
}

const (
	maxWeight    = 1000
	maxClasses   = 100
	wholePart    = 100 // percent
	defaultShare = 1

	// leastWeight is the least of a name among shares: a rest of 1 % among many.
	leastWeight = 0.001
)

// weightAmong returns the weight of a name where shares are declared: its part, and of the
// rest what is its own by weight. So of names that all wait each gets its part at least. 1
// is an equal share; a name that is not declared has the least of those that are.
func weightAmong(shares map[string]Share, name string) float64 {
	parts, sum := int64(0), int64(0)
	for _, s := range shares {
		parts, sum = parts+s.Guaranteed, sum+s.weight()
	}
	of := func(s Share) float64 {
		rest := float64(wholePart-parts) * float64(s.weight()) / float64(sum)
		return max(leastWeight, (float64(s.Guaranteed)+rest)/wholePart*float64(len(shares)))
	}
	if s, ok := shares[name]; ok {
		return of(s)
	}
	least := 1.0
	for _, s := range shares {
		least = min(least, of(s))
	}
	return least
}

func (s Share) weight() int64 { return max(s.Weight, defaultShare) }

// YAML returns the share as it stands in limits.yaml: {part: 60%, weight: 3}.
func (s Share) YAML() string {
	var fields []string
	if s.Guaranteed != 0 {
		fields = append(fields, "part: "+strconv.FormatInt(s.Guaranteed, 10)+"%")
	}
	if s.weight() != defaultShare || s.Guaranteed == 0 {
		fields = append(fields, "weight: "+strconv.FormatInt(s.weight(), 10))
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

// SharesYAML returns shares as they stand in limits.yaml, in the order of their names:
// {batch: {weight: 3}, interactive: {part: 60%}}.
func SharesYAML(shares map[string]Share) string {
	names := slices.Sorted(maps.Keys(shares))
	for i, name := range names {
		names[i] = yamlText(name) + ": " + shares[name].YAML()
	}
	return "{" + strings.Join(names, ", ") + "}"
}

// draftShare is the share of one name as it was written.
type draftShare struct {
	name         string
	at           diag.Place
	share        Share
	part, weight written
}

// checkShares checks the weight of a scope and the shares of those below it.
func (s *draftScope) checkShares(path string, level int, faults *strictyaml.Faults) map[string]Share {
	checkWeight(s.weight, s.weighed, path+".weight", faults)
	if len(s.shares) == 0 {
		return nil
	}
	if level >= maxLevels {
		faults.Add(s.shares[0].at, path+".shares", fmt.Sprintf("shares stands at level %d, below which no scope has names; the most is %d", level, maxLevels))
	}
	if len(s.shares) > maxClasses {
		faults.Add(s.shares[maxClasses].at, path+".shares", fmt.Sprintf("shares has %d names; the most is %d", len(s.shares), maxClasses))
	}
	shares, parts, least := make(map[string]Share, len(s.shares)), int64(0), (*draftShare)(nil)
	for i := range s.shares {
		d := &s.shares[i]
		d.check(diag.PathTo(path+".shares", d.name), faults)
		shares[d.name] = Share{Guaranteed: d.share.Guaranteed, Weight: d.share.weight()}
		if d.share.Guaranteed >= 1 && d.share.Guaranteed <= wholePart {
			parts += d.share.Guaranteed
		}
		if d.share.Guaranteed == 0 && least == nil {
			least = d
		}
	}
	switch {
	case parts > wholePart:
		faults.Add(s.shares[0].at, path+".shares", fmt.Sprintf("the parts are %d%% together; the most is %d%%", parts, wholePart))
	case parts == wholePart && least != nil:
		faults.Add(least.at, diag.PathTo(path+".shares", least.name), fmt.Sprintf("the parts are %d%% together, and %s has none: leave it one, or use priorities of tasks",
			parts, diag.Quote(least.name)))
	}
	return shares
}

func (d *draftShare) check(path string, faults *strictyaml.Faults) {
	reason := diag.NameReason(d.name)
	if d.name == anyName {
		reason = `is no name that a scope can have; name each class, and let "*" of scopes carry what they have in common`
	}
	if reason != "" {
		faults.Add(d.at, path, "name "+reason)
	}
	checkWeight(d.share.Weight, d.weight, path+".weight", faults)
	if d.part.good() && (d.share.Guaranteed < 1 || d.share.Guaranteed > wholePart) {
		faults.Add(d.part.at, path+".part", fmt.Sprintf("part is %s; it must be 1%% to %d%%", d.part.text, wholePart))
	}
}

func checkWeight(weight int64, w written, path string, faults *strictyaml.Faults) {
	if w.good() && (weight < 1 || weight > maxWeight) {
		faults.Add(w.at, path, fmt.Sprintf("weight is %s; it must be 1 to %d", w.text, maxWeight))
	}
}

// checkWeighed refuses a name that has a weight of its own, where its share says what it gets.
func (s *draftScope) checkWeighed(path string, faults *strictyaml.Faults) {
	for _, below := range s.scopes {
		if !below.weighed.good() {
			continue
		}
		if slices.ContainsFunc(s.shares, func(d draftShare) bool { return d.name == below.name }) {
			faults.Add(below.weighed.at, diag.PathTo(path+".scopes", below.name)+".weight",
				fmt.Sprintf("weight of %s is in shares of the scope above; keep one of the two", diag.Quote(below.name)))
		}
	}
}

// draftShares returns the draft of shares made in Go.
func draftShares(shares map[string]Share) (drafts []draftShare) {
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		s := shares[name]
		drafts = append(drafts, draftShare{
			name: name, share: s,
			part:   written{text: strconv.FormatInt(s.Guaranteed, 10) + "%", set: s.Guaranteed != 0},
			weight: written{text: strconv.FormatInt(s.Weight, 10), set: s.Weight != 0},
		})
	}
	return drafts
}

var shareFields = []string{"part", "weight"}

// shares reads the shares of the names below a scope.
func (d decoder) shares(e strictyaml.Field, path string) (shares []draftShare) {
	if !d.Is(e, yaml.MappingNode, path, "names under it, such as {interactive: {part: 60%}, batch: {weight: 3}}") {
		return nil
	}
	for _, e := range d.Fields(e.Value, path) {
		s := draftShare{name: e.Name, at: strictyaml.PlaceOf(e.Key)}
		at := diag.PathTo(path, e.Name)
		if !d.Is(e, yaml.MappingNode, at, "its share, such as {part: 60%, weight: 1}") {
			continue
		}
		for _, f := range d.Fields(e.Value, at) {
			switch f.Name {
			case "part":
				s.share.Guaranteed, s.part = d.percent(f, at+".part")
			case "weight":
				s.share.Weight, s.weight = d.number(f, at+".weight")
			default:
				d.unknown(f, diag.PathTo(at, f.Name), "a share", shareFields)
			}
		}
		shares = append(shares, s)
	}
	if len(shares) == 0 && len(e.Value.Content) == 0 {
		d.bad(e, path, "is empty; name a scope below, or remove the line")
	}
	return shares
}

// percent reads whole percents.
func (d decoder) percent(e strictyaml.Field, path string) (int64, written) {
	const want = "whole percents, such as 60%"
	w := d.scalar(e, path, want)
	text, found := strings.CutSuffix(e.Value.Value, "%")
	if w.good() && (!found || !plainNumber(text)) {
		w = d.bad(e, path, "is %s; write %s", strictyaml.Describe(e.Value), want)
	}
	n, _ := strconv.ParseInt(text, 10, 64) // out of range gives the nearest number, which is out of bounds too
	return n, w
}
