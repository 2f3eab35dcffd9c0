package control

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// AssignedKeys are the fields that assign writes, as limits.yaml names them: what a scope has besides rules.
var AssignedKeys = []string{"owner", "apps", "hosts", "weight", "shares", "answers", "breaker"}

// ReadAssigned sets one of AssignedKeys from its text; an empty text removes it. Commas divide lists; shares are NAME:60%:2,NAME:3,
// with a part in percent and a weight. The error says what is expected.
func ReadAssigned(a *policystore.Assigned, key, text string) error {
	switch key {
	case "owner":
		a.Owner = &text
	case "apps":
		a.Apps = listed(text)
	case "hosts":
		a.Hosts = listed(text)
	case "answers":
		a.Answers = &text
	case "breaker":
		a.Breaker = &text
	case "weight":
		weight, err := int64(1), error(nil)
		if text != "" {
			weight, err = strconv.ParseInt(text, 10, 64)
		}
		if a.Weight = &weight; err != nil || weight < 1 {
			return fmt.Errorf("weight %q is not a whole number above 0", text)
		}
	case "shares":
		var is bool
		if a.Shares, is = readShares(text); !is {
			return fmt.Errorf("shares %q is not names with a part or a weight, such as interactive:60%%:2,batch:3", text)
		}
	}
	return nil
}

// AssignedText returns one of AssignedKeys of a scope as ReadAssigned takes it.
func AssignedText(n policy.ScopeConfig, key string) string {
	switch key {
	case "owner":
		return n.Owner
	case "apps":
		return strings.Join(n.Apps, ",")
	case "hosts":
		return strings.Join(n.Hosts, ",")
	case "weight":
		if n.Weight != 0 {
			return strconv.FormatInt(n.Weight, 10)
		}
	case "shares":
		return writeShares(n.Shares)
	case "answers":
		return limitsyaml.FormatAnswers(n)
	case "breaker":
		return limitsyaml.FormatBreaker(n.Breaker)
	}
	return ""
}

// ConfigAt returns what limits say at a place, such as payments/*, without what it inherits.
func ConfigAt(p *policy.Policy, place string) policy.ScopeConfig {
	_, scopes := p.Limits()
	return policy.ScopeConfig{Scopes: scopes}.At(place)
}

// listed reads NAME,NAME. An empty text is an empty list.
func listed(text string) []string {
	if text == "" {
		return []string{}
	}
	return strings.Split(text, ",")
}

func readShares(text string) (shares map[string]policy.Share, is bool) {
	shares = map[string]policy.Share{}
	if text == "" {
		return shares, true
	}
	for part := range strings.SplitSeq(text, ",") {
		name, numbers, _ := strings.Cut(part, ":")
		_, twice := shares[name]
		if shares[name], is = readShare(numbers); twice || !is {
			return shares, false
		}
	}
	return shares, true
}

func writeShares(shares map[string]policy.Share) string {
	names := slices.Sorted(maps.Keys(shares))
	for i, name := range names {
		s := shares[name]
		if s.Guaranteed != 0 {
			names[i] += fmt.Sprintf(":%d%%", s.Guaranteed)
		}
		if s.Weight > 1 || s.Guaranteed == 0 {
			names[i] += fmt.Sprintf(":%d", max(1, s.Weight))
		}
	}
	return strings.Join(names, ",")
}

func readShare(numbers string) (s policy.Share, is bool) {
	for number := range strings.SplitSeq(numbers, ":") {
		digits, isPart := strings.CutSuffix(number, "%")
		n, err := strconv.ParseInt(digits, 10, 64)
		to := &s.Weight
		if isPart {
			to = &s.Guaranteed
		}
		if err != nil || n < 1 || *to != 0 {
			return s, false
		}
		*to = n
	}
	return s, true
}
