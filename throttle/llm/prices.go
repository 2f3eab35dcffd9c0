package llm

import (
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/headway-go/headway/internal/diag"
)

// Price is what a model's tokens cost, in US dollars a million, by their kind: see Kinds. Input must have a price. What was read from a
// cache costs as much unless it has another. Any other kind that an answer used and that has none leaves the answer without USD.
type Price map[string]float64

// The kinds of tokens that have a price.
const (
	priceInput  = "input"
	priceCached = "cached"
	priceWrite  = "cache_write"    // for five minutes
	priceHour   = "cache_write_1h" // for an hour
	priceOutput = "output"
)

// Kinds returns the kinds of a Price.
func Kinds() []string { return []string{priceInput, priceCached, priceWrite, priceHour, priceOutput} }

// MaxPrice is the highest price, in US dollars for a million tokens.
const MaxPrice = 1000

// Fault returns what is wrong with a price, "" for nothing.
func Fault(price float64) string {
	if price >= 0 && price <= MaxPrice && math.Abs(price*1e6-math.Round(price*1e6)) < 1e-3 {
		return ""
	}
	return fmt.Sprintf("is %v; write US dollars for a million tokens, 0 to %d, with six decimals at most", price, MaxPrice)
}

// maxUnknown is how many models without a price are remembered.
const maxUnknown = 1000

// Prices are what models cost. It is safe for concurrent use. Nil has no prices: it reads tokens alone.
type Prices struct {
	// OnUnknown is called once for each model that an answer names and that has no price: its charge in USD stays as it was estimated. It
	// must not block. Defaults to a warning in the log of slog.Default. Set it before the first answer.
	OnUnknown func(model string)

	exact    map[string]Price
	prefixes []string // of names that end in "*", the longest first

	mu      sync.Mutex
	unknown map[string]bool
}

// NewPrices returns the prices of models by their names, as answers give them. A name that ends in "*" stands for all that begin so, as
// vendors add dates; of several, the longest counts, and a full name before all. The error has the first price that is wrong.
func NewPrices(models map[string]Price) (*Prices, error) {
	p := &Prices{exact: maps.Clone(models), unknown: map[string]bool{}}
	for _, name := range slices.Sorted(maps.Keys(models)) {
		if _, has := models[name][priceInput]; !has {
			return nil, fmt.Errorf("llm: %s has no price of %s; write 0 if it costs nothing", diag.Quote(name), priceInput)
		}
		for kind, price := range models[name] {
			if !slices.Contains(Kinds(), kind) {
				return nil, fmt.Errorf("llm: %s: %s is no kind of tokens; write %s", diag.Quote(name), diag.Quote(kind), diag.OneOf(Kinds()))
			}
			if reason := Fault(price); reason != "" {
				return nil, fmt.Errorf("llm: %s: %s %s", diag.Quote(name), kind, reason)
			}
		}
		if prefix, is := strings.CutSuffix(name, "*"); is {
			p.prefixes = append(p.prefixes, prefix)
		}
	}
	slices.SortFunc(p.prefixes, func(a, b string) int { return len(b) - len(a) })
	return p, nil
}

// price returns the price of a model, nil for none.
func (p *Prices) price(model string) Price {
	if price, is := p.exact[model]; is {
		return price
	}
	for _, prefix := range p.prefixes {
		if strings.HasPrefix(model, prefix) {
			return p.exact[prefix+"*"]
		}
	}
	return nil
}

// of returns what an answer of a model has cost, in millionths of a dollar, rounded up.
func (p *Prices) of(model string, n counts) (cost int64, priced bool) {
	price := p.price(model)
	if price == nil {
		p.report(model)
		return 0, false
	}
	for _, part := range []struct {
		kind   string
		tokens int64
	}{{priceInput, n.input}, {priceCached, n.cached}, {priceWrite, n.written - n.hour}, {priceHour, n.hour}, {priceOutput, n.output}} {
		each, has := price[part.kind]
		if !has && part.kind == priceCached {
			each, has = price[priceInput]
		}
		if !has && part.tokens > 0 {
			p.report(model)
			return 0, false
		}
		cost += part.tokens * int64(math.Round(each*1e6)) // below 5e18: see MaxPrice and maxTokens
	}
	return (cost + 999_999) / 1_000_000, true
}

// report reports a model without a price, the first time.
func (p *Prices) report(model string) {
	p.mu.Lock()
	first := !p.unknown[model] && len(p.unknown) < maxUnknown
	if first {
		p.unknown[model] = true
	}
	p.mu.Unlock()
	switch {
	case !first:
	case p.OnUnknown != nil:
		p.OnUnknown(model)
	default:
		slog.Warn("model has no price, or none for all of its tokens; charges in usd stay as they were estimated", "model", diag.Clip(model))
	}
}
