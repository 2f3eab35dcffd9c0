package serve

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// reported is the answer to report.
type reported struct {
	Limited     bool       `json:"limited"`
	Failed      bool       `json:"failed"`
	RetryMS     int64      `json:"retry_ms,omitzero"`
	PausedUntil *time.Time `json:"paused_until,omitzero"`
	PausedScope string     `json:"paused_scope,omitzero"`
	PausedRule  string     `json:"paused_rule,omitzero"`
	OpenUntil   *time.Time `json:"open_until,omitzero"`
}

// report heeds what an API has answered, as packages roundtrip and worker do.
func (h *Handler) report(ctx context.Context, r *request) (any, error) {
	b, err := read(r, func(b *apiAnswer) string { return b.Scope })
	if err != nil {
		return nil, err
	}
	if b.Failed == (b.Status != 0) || b.Status != 0 && (b.Status < 100 || b.Status > 599) {
		return nil, &fault{http.StatusBadRequest, "an answer has a status from 100 to 599, and a call without one has failed", forms["status"] + ", or " + forms["failed"]}
	}
	var g throttle.Grant
	about := b.Scope
	if b.ID != "" {
		if g, err = h.load(ctx, r, ref{b.Scope, b.ID}); err != nil {
			return nil, err
		}
		about = g.AnswerScope()
	}
	return h.heed(ctx, b, g, about)
}

func (h *Handler) heed(ctx context.Context, b *apiAnswer, g throttle.Grant, about string) (out reported, err error) {
	l := h.cfg.Limiter
	hint := h.hintOf(b, about)
	result, err := l.Report(ctx, about, hint)
	if err == nil && about != b.Scope && !hint.Limited { // it may have been the probe of its path too
		_, err = l.Report(ctx, b.Scope, upstream.Hint{Unread: true, Sent: hint.Sent})
	}
	if err != nil {
		return out, err
	}
	out = reported{Limited: hint.Limited, Failed: hint.Failed, PausedUntil: moment(result.Until), PausedScope: result.Scope, PausedRule: result.Rule}
	if hint.RetryKnown {
		out.RetryMS = ms(hint.Retry)
	}
	if s, err := policy.ParseScope(b.Scope); err == nil && l.Policy().Hears(s, hint.Host) {
		call, err := l.ReportCall(ctx, g, hint.Failed)
		if err != nil {
			return out, err
		}
		out.OpenUntil = moment(call.Until)
	}
	if len(hint.Costs) > 0 {
		_, err = l.Settle(ctx, g, hint.Costs)
	} else if hint.Limited && !hint.Counts {
		_, err = l.SettleRefused(ctx, g)
	}
	return out, err
}

// hintOf reads an answer by what the policy says of its scope.
func (h *Handler) hintOf(b *apiAnswer, about string) upstream.Hint {
	now := time.Now()
	hint := upstream.Hint{Failed: true}
	if !b.Failed {
		header := make(http.Header, len(b.Headers))
		for name, value := range b.Headers {
			header.Set(name, value)
		}
		resp := &http.Response{StatusCode: b.Status, Header: header, Body: io.NopCloser(strings.NewReader(b.Body))}
		if b.Host != "" {
			resp.Request = &http.Request{URL: &url.URL{Scheme: "https", Host: b.Host}}
		}
		hint = h.cfg.Limiter.ReadResponse(about, resp, now)
	}
	if b.TookMS > 0 {
		hint.Sent = now.Add(-time.Duration(min(b.TookMS, time.Hour.Milliseconds())) * time.Millisecond)
	}
	return hint
}

func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Truncate(time.Millisecond)
	return &t
}
