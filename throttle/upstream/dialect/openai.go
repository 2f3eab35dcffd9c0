package dialect

import "github.com/headway-go/headway/throttle/upstream"

// OpenAI counts requests and tokens a minute (some models also a day) of a project, an organization and a model, and says in
// X-RateLimit fields what is left. A refused request counts too. A 429 of the type insufficient_quota is about money: no credit, or a
// spend or usage limit of the month. slow_down means that traffic rises too fast, server_is_overloaded (503) that the servers are busy.
// A request that alone has more tokens than a minute is answered with 429, too, but no wait helps it: its task fails. The page does not
// have this message, nor billing_not_active and billing_hard_limit_reached: public logs and many clients do.
var openai = &Dialect{
	Name:   "openai",
	Source: "https://developers.openai.com/api/docs/guides/error-codes",
	Date:   "2026-11",
	Table: upstream.Table{
		Usage: true,
		Cases: []upstream.Case{
			{Status: 429, JSON: "error.message~Request too large", Means: upstream.Fine},
			{JSON: "error.type=insufficient_quota", Wait: spentWait, Scope: upstream.ScopeTop},
			{Status: 429, JSON: "error.type=billing_not_active", Wait: spentWait, Scope: upstream.ScopeTop},
			{JSON: "error.code=billing_hard_limit_reached", Wait: spentWait, Scope: upstream.ScopeTop}, // 400, of images
			{JSON: "error.code=slow_down", Wait: overloadWait},
			{Status: 503, JSON: "error.code=server_is_overloaded", Wait: overloadWait},
		},
		NamePaths: []string{"error.code", "error.type"}, // the type of a rate limit is what is counted: requests or tokens
	},
}
