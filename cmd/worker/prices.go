package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/throttle/limitsfile"
	"github.com/headway-go/headway/throttle/llm"
	"github.com/headway-go/headway/throttle/llm/pricesyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// warnOfMoney warns if a rule counts money and there are no prices.
func warnOfMoney(ctx context.Context, prices *llm.Prices, rules *policy.Policy, log *slog.Logger) {
	if prices != nil {
		return
	}
	for pattern, r := range rules.Rules() {
		if r.Unit == llm.USD && !r.Unlimited {
			log.WarnContext(ctx, "rule counts usd, and -prices does not say what calls cost; charges stay as they were estimated", "scope", pattern, "rule", r.Name)
			return
		}
	}
}

// loadPrices reads the file of -prices, when it is not being written any more; "" is none.
func loadPrices(ctx context.Context, path string, log *slog.Logger) (*llm.Prices, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // nil prices are none
	}
	var p *llm.Prices
	text, _, err := limitsfile.ReadSettled(ctx, path)
	if err == nil {
		p, err = pricesyaml.Parse(path, text)
	}
	switch {
	case err == nil:
		p.OnUnknown = func(model string) {
			log.WarnContext(ctx, "model has no price in -prices, or none for all of its tokens; charges in usd stay as they were estimated", "model", diag.Clip(model))
		}
		return p, nil
	case errors.Is(err, limitsfile.ErrBusy), errors.Is(err, context.Canceled):
		return nil, err
	case errors.As(err, new(*policy.Error)):
		return nil, &cli.Error{What: err.Error(), Try: "correct these lines of " + path + "; nothing was started", Err: err}
	case errors.Is(err, fs.ErrNotExist):
		return nil, &cli.Error{What: "there is no file of prices " + path, Try: `a file such as "prices: {gpt-5.5*: {input: 1.25, output: 10}}"`, Err: err}
	}
	return nil, &cli.Error{What: "cannot read the file of prices: " + err.Error(), Err: err}
}
