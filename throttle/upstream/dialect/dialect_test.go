package dialect

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/upstream"
)

// now is another time than the recorded answers' Date, which counts.
var now = time.Date(2026, 11, 2, 9, 0, 0, 0, time.UTC)

// wanted are the hints of the recorded answers, as said describes them.
var wanted = map[string]string{
	"amazon/error":           "fine",
	"amazon/error-503":       "failed",
	"amazon/exceeded":        "limited; pause 59.880239521s; names QuotaExceeded; ? of 1 requests in 59.880239521s",
	"amazon/exceeded-fast":   "limited; names QuotaExceeded; ? of 5 requests in 1s",
	"amazon/exceeded-unsaid": "limited; names QuotaExceeded",
	"amazon/success":         "fine; ? of 1 requests in 2s",

	"anthropic/billing":         "limited; pause 10m0s; scope top",
	"anthropic/credit":          "limited; pause 10m0s; scope top",
	"anthropic/error":           "fine",
	"anthropic/error-500":       "failed",
	"anthropic/limited":         "limited; retry 31s; 0 of 40000 input-tokens in 1m0s",
	"anthropic/overloaded":      "limited; pause 5s",
	"anthropic/spend-limit":     "limited; pause 10m0s; scope top",
	"anthropic/success":         "fine; 9618 of 10000 input-tokens; 39000 of 40000 input-tokens in 1m0s; 8000 of 8000 output-tokens in 1m0s; 49 of 50 requests in 1m0s",
	"anthropic/tier-limit":      "limited; pause 10m0s; scope top; names enforced_spend_limit_reached",
	"anthropic/workspace-limit": "limited; pause 10m0s; scope top",

	"atlassian/beta":             "fine; 347 of 350 requests",
	"atlassian/burst":            "limited; retry 1s; scope here; names jira-burst-based; 0 of 350 requests",
	"atlassian/error":            "fine; 348 of 350 requests",
	"atlassian/issue":            "limited; retry 2s; scope here; names jira-per-issue-on-write",
	"atlassian/quota-confluence": "limited; retry 50s; scope top; names confluence-quota-global-based; global-app-quota 0 of ? points",
	"atlassian/quota-global":     "limited; retry 30m47s; scope top; names jira-quota-global-based; 0 of 100000 requests",
	"atlassian/quota-tenant":     "limited; retry 10m0s; scope here; names jira-quota-tenant-based; 0 of 150000 requests",
	"atlassian/success":          "fine; jira-burst-based 90 of 100 requests in 1s; global-app-quota 11000 of 65000 points in 1h0m0s",

	"gemini/credits":              "limited; pause 10m0s; scope top",
	"gemini/day":                  "limited; retry 9h54m0s; pause 10m0s; names GenerateRequestsPerDayPerProjectPerModel-FreeTier",
	"gemini/day-short":            "limited; pause 10m0s; names GenerateRequestsPerDayPerProjectPerModel-FreeTier",
	"gemini/error":                "fine",
	"gemini/error-503":            "failed",
	"gemini/interactions":         "limited",
	"gemini/interactions-day":     "limited; pause 10m0s",
	"gemini/interactions-payment": "limited; pause 10m0s; scope top",
	"gemini/minute":               "limited; retry 46.074s; names GenerateRequestsPerMinutePerProjectPerModel-FreeTier",
	"gemini/payment":              "limited; pause 10m0s; scope top",
	"gemini/spend":                "limited; pause 10m0s; scope top",
	"gemini/success":              "fine",

	"github/error":             "fine; core 4986 of 5000 requests in 1h0m0s",
	"github/primary":           "limited; retry 20m0s; scope top; names core; core 0 of 5000 requests in 1h0m0s",
	"github/primary-429":       "limited; retry 42s; names search; search 0 of 30 requests in 1m0s",
	"github/primary-graphql":   "limited; retry 20m0s; pause 1m0s; scope top; names graphql; graphql 0 of 5000 requests in 1h0m0s",
	"github/primary-left":      "limited; pause 1m0s; scope top; graphql 4979 of 5000 requests in 1h0m0s",
	"github/secondary":         "limited; pause 1m0s; scope top; core 4890 of 5000 requests in 1h0m0s",
	"github/secondary-429":     "limited; retry 1m30s; pause 1m0s; scope top",
	"github/secondary-graphql": "limited; pause 1m0s; scope top",
	"github/success":           "fine; core 4987 of 5000 requests in 1h0m0s",
	"github/success-graphql":   "fine; graphql 4999 of 5000 requests in 1h0m0s",

	"hubspot/day":         "limited; pause 10m0s; scope top; names DAILY",
	"hubspot/error":       "fine",
	"hubspot/locked":      "limited; pause 2s",
	"hubspot/migration":   "limited; retry 24h0m0s; scope top",
	"hubspot/second":      "limited; names SECONDLY",
	"hubspot/success":     "fine; 92 of 100 requests in 10s; 248555 of 250000 requests in 24h0m0s",
	"hubspot/ten-seconds": "limited; pause 10s; scope top; names TEN_SECONDLY_ROLLING; 0 of 100 requests in 10s",

	"openai/credit-balance-exhausted":          "limited; pause 10m0s; scope top; names credit_balance_exhausted insufficient_quota",
	"openai/error":                             "fine",
	"openai/error-500":                         "failed",
	"openai/hard-limit":                        "limited; pause 10m0s; scope top; names billing_hard_limit_reached billing_limit_user_error",
	"openai/inactive":                          "limited; pause 10m0s; scope top; names billing_not_active",
	"openai/organization-spend-limit-exceeded": "limited; pause 10m0s; scope top; names organization_spend_limit_exceeded insufficient_quota",
	"openai/organization-usage-limit-exceeded": "limited; pause 10m0s; scope top; names organization_usage_limit_exceeded insufficient_quota",
	"openai/overloaded":                        "limited; pause 5s; names server_is_overloaded service_unavailable_error",
	"openai/project-spend-limit-exceeded":      "limited; pause 10m0s; scope top; names project_spend_limit_exceeded insufficient_quota",
	"openai/requests":                          "limited; retry 3s; names rate_limit_exceeded requests",
	"openai/slow-down":                         "limited; pause 5s; names slow_down rate_limit_error",
	"openai/success":                           "fine; 59 of 60 requests; 149984 of 150000 tokens",
	"openai/tokens":                            "limited; retry 34s; names rate_limit_exceeded tokens; 59 of 60 requests; 0 of 150000 tokens",
	"openai/too-large":                         "fine",

	"salesforce/concurrent":      "limited; pause 10s; scope top; names REQUEST_LIMIT_EXCEEDED; 89982 of 100000 requests in 24h0m0s",
	"salesforce/concurrent-apex": "limited; pause 10s; names REQUEST_LIMIT_EXCEEDED",
	"salesforce/concurrent-soap": "limited; pause 10s; scope top",
	"salesforce/day":             "limited; pause 1m0s; scope top; names REQUEST_LIMIT_EXCEEDED; 0 of 100000 requests in 24h0m0s",
	"salesforce/day-soap":        "limited; pause 1m0s; scope top",
	"salesforce/error-repeats":   "fine",
	"salesforce/error":           "fine; 89981 of 100000 requests in 24h0m0s",
	"salesforce/success":         "fine; 89982 of 100000 requests in 24h0m0s",

	"shopify/error":               "fine",
	"shopify/success":             "fine; costs 46 points; 954 of 50 points in 1s",
	"shopify/success-no-status":   "fine; costs 46 points",
	"shopify/success-rest":        "fine; 8 of 40 requests",
	"shopify/throttled":           "limited; retry 1.72s; costs 0 points; 666 of 50 points in 1s",
	"shopify/throttled-no-status": "limited",
	"shopify/throttled-rest":      "limited; retry 2s; 0 of 40 requests",
	"shopify/variants":            "fine",
	"shopify/variants-rest":       "fine",

	"stripe/endpoint-concurrency": "limited; scope here; names endpoint-concurrency",
	"stripe/endpoint-rate":        "limited; scope here; names endpoint-rate",
	"stripe/error":                "fine",
	"stripe/global-concurrency":   "limited; scope top; names global-concurrency",
	"stripe/global-rate":          "limited; scope top; names global-rate",
	"stripe/lock-timeout":         "fine",
	"stripe/resource-specific":    "limited; scope here; names resource-specific",
	"stripe/success":              "fine",
}

// said describes a hint in a line. Quotas are as "core 4987 of 5000 requests in 1h0m0s", with "?" for what is not known.
func said(h upstream.Hint) string {
	parts := []string{"fine"}
	if h.Limited {
		parts[0] = "limited"
	} else if h.Failed {
		parts[0] = "failed"
	}
	add := func(is bool, format string, args ...any) {
		if is {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(h.RetryKnown, "retry %s", h.Retry)
	add(h.Pause != 0, "pause %s", h.Pause)
	add(h.Where != "", "scope %s", h.Where)
	add(len(h.Names) > 0, "names %s", strings.Join(h.Names, " "))
	for _, unit := range slices.Sorted(maps.Keys(h.Costs)) {
		add(true, "costs %d %s", h.Costs[unit], unit)
	}
	for _, q := range h.Quotas {
		text := fmt.Sprintf("%s %d of %d %s in %s", q.Name, q.Remaining, q.Limit, q.Unit, q.Window)
		text = strings.TrimSuffix(strings.ReplaceAll(text, "-1 ", "? "), " in 0s")
		add(true, "%s", strings.TrimSpace(text))
	}
	return strings.Join(parts, "; ")
}

// recorded returns the recorded answers of a dialect, by name and file without its ending. All are made by us, in the vendor's form.
func recorded(t testing.TB, name string) map[string][]byte {
	t.Helper()
	answers := map[string][]byte{}
	dir := os.DirFS("testdata")
	files, err := fs.Glob(dir, name+"/*.http")
	for _, file := range files {
		if err == nil {
			answers[strings.TrimSuffix(file, ".http")], err = fs.ReadFile(dir, file)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return answers
}

// read returns what a table says of an answer: a status line, header lines, an empty line and the body.
func read(t testing.TB, table *upstream.Table, answer []byte) upstream.Hint {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	return upstream.Reader{Tables: []*upstream.Table{table}}.ReadResponse(resp, now)
}

func TestRecordedAnswers(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, d := range all {
		for file, answer := range recorded(t, d.Name) {
			seen++
			if got := said(read(t, &d.Table, answer)); got != wanted[file] {
				t.Errorf("%s:\n got %s\nwant %s", file, got, wanted[file])
			}
		}
	}
	if seen != len(wanted) {
		t.Errorf("%d recorded answers, %d expected", seen, len(wanted))
	}
}

// Each case of each dialect counts for a recorded answer, and each dialect has an answer of success and an error that is no limit.
func TestCasesAreRecorded(t *testing.T) {
	t.Parallel()
	for _, d := range all {
		answers := recorded(t, d.Name)
		for _, kind := range []string{"success", "error"} {
			if wanted := wanted[d.Name+"/"+kind]; !strings.HasPrefix(wanted, "fine") {
				t.Errorf("%s has no recorded %s", d.Name, kind)
			}
		}
		for i, c := range d.Cases {
			marked := d.Table
			marked.Cases = slices.Clone(d.Cases)
			marked.Cases[i].Burns = true
			if !slices.ContainsFunc(slices.Collect(maps.Values(answers)), func(answer []byte) bool { return read(t, &marked, answer).Burns }) {
				t.Errorf("%s: no recorded answer is %+v", d.Name, c)
			}
		}
	}
}

func TestNamed(t *testing.T) {
	t.Parallel()
	names := []string{"amazon", "anthropic", "atlassian", "gemini", "github", "hubspot", "openai", "salesforce", "shopify", "stripe"}
	if got := Names(); !slices.Equal(got, names) {
		t.Errorf("Names() = %q", got)
	}
	for _, name := range names {
		d, ok := Named(name)
		if !ok || d.Name != name || !strings.HasPrefix(d.Source, "https://") || !regexp.MustCompile(`^20\d\d-(0[1-9]|1[0-2])$`).MatchString(d.Date) {
			t.Errorf("Named(%q) = %+v, %t", name, d, ok)
		}
	}
	if d, ok := Named("nobody"); ok {
		t.Errorf(`Named("nobody") = %+v`, d)
	}
}

// Each dialect has its section in docs/vendors.md, with its page and date.
func TestVendorsPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/vendors.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		for _, text := range []string{"answers: " + d.Name + "\n", "](" + d.Source + ")"} {
			if !strings.Contains(string(page), text) {
				t.Errorf("docs/vendors.md does not have %q", text)
			}
		}
		if !regexp.MustCompile(regexp.QuoteMeta("]("+d.Source+")") + `[^\n]*` + d.Date).Match(page) {
			t.Errorf("docs/vendors.md does not say that %s is of %s", d.Name, d.Date)
		}
	}
}

// Whatever a body says, a hint keeps its bounds.
func FuzzBodies(f *testing.F) {
	for _, d := range all {
		for _, answer := range recorded(f, d.Name) {
			_, body, _ := bytes.Cut(answer, []byte("\n\n"))
			f.Add(200, body)
			f.Add(429, body)
		}
	}
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		if status < 100 || status > 999 {
			return
		}
		answer := fmt.Appendf(nil, "HTTP/1.1 %d Said\r\n\r\n%s", status, body)
		for _, d := range all {
			h := read(t, &d.Table, answer)
			if h.Retry < 0 || h.Retry > upstream.MaxWait || !h.RetryKnown && h.Retry != 0 || h.RetryKnown && !h.Limited || len(h.Quotas) > upstream.MaxQuotas {
				t.Errorf("%s: %+v", d.Name, h)
			}
			for _, q := range h.Quotas {
				if q.Limit < 1 || q.Remaining < 0 {
					t.Errorf("%s: %+v", d.Name, q)
				}
			}
			for unit, cost := range h.Costs {
				if cost < 0 {
					t.Errorf("%s: costs %d %s", d.Name, cost, unit)
				}
			}
		}
	})
}
