// Package dialect knows how vendors' APIs say that calls are limited, where that differs from what most APIs say: a table for each
// vendor, in a file of its own, with the page that it was read from and when. docs/vendors.md describes them for users.
//
// A limit that the vendor counts over everything that one account does holds back the level that declares the dialect
// (upstream.ScopeTop). Any other limit holds back the scope of the refused call, as does one that the answer does not name.
package dialect

import (
	"slices"
	"strconv"
	"time"

	"github.com/headway-go/headway/throttle/upstream"
)

// Dialect is how one vendor's API says that calls are limited. Do not change one that Named has returned.
type Dialect struct {
	Name   string // as in limits.yaml
	Source string // the vendor's page
	Date   string // when it was read, as 2026-11
	upstream.Table
}

// all are the dialects, by name.
var all = []*Dialect{amazon, anthropic, atlassian, gemini, github, hubspot, openai, salesforce, shopify, stripe}

// Named returns the dialect of a name such as "github".
func Named(name string) (*Dialect, bool) {
	at := slices.IndexFunc(all, func(d *Dialect) bool { return d.Name == name })
	if at < 0 {
		return nil, false
	}
	return all[at], true
}

// Names returns the names of the dialects, sorted.
func Names() []string {
	names := make([]string, len(all))
	for i, d := range all {
		names[i] = d.Name
	}
	return names
}

const (
	// spentWait is the first pause when a day's quota, a credit or a spend limit is used up. Only a new day, a new month or money
	// helps, so tasks wait, and a call now and then finds out.
	spentWait = 10 * time.Minute
	// overloadWait is the first pause when the API is overloaded, or asks for a slower rise.
	overloadWait = 5 * time.Second
)

// number reads a number in a body, known if there is one that is not negative and makes sense as a number of units.
func number(body upstream.Body, path string) (n float64, known bool) {
	n, err := strconv.ParseFloat(body.First(path), 64)
	return n, err == nil && 0 <= n && n < 1<<53
}

// setWindows sets the window of the quotas that give none. windowOf returns 0 where the vendor's page does not say.
func setWindows(h *upstream.Hint, windowOf func(upstream.Quota) time.Duration) {
	for i := range h.Quotas {
		if q := &h.Quotas[i]; q.Window == 0 {
			q.Window = windowOf(*q)
		}
	}
}
