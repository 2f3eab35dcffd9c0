package upstream

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func ietf(name string, limit, remaining int64, reset, window time.Duration) Quota {
	return quota("ratelimit", name, "requests", limit, remaining, reset, window)
}

func inUnit(q Quota, unit string) Quota {
	q.Unit = unit
	return q
}

// The IETF draft, in the forms that it has had.
func TestDraft(t *testing.T) {
	t.Parallel()
	const s = time.Second
	check(t, map[string]reading{
		"two policies, one state": {200, `
			RateLimit-Policy: "burst";q=100;w=60, "daily";q=1000;w=86400
			RateLimit: "burst";r=50;t=30`,
			told(ietf("burst", 100, 50, 30*s, time.Minute), ietf("daily", 1000, Unknown, Unknown, day))},
		"on several lines": {200, `
			RateLimit-Policy: "burst";q=100;w=60
			RateLimit-Policy: "daily";q=1000;w=86400
			RateLimit: "daily";r=7
			RateLimit: "burst";r=50`,
			told(ietf("burst", 100, 50, Unknown, time.Minute), ietf("daily", 1000, 7, Unknown, day))},
		"units": {200, `
			RateLimit-Policy: "bytes";q=65535;qu="content-bytes";w=10, "peruser";q=100;qu=Requests;w=60, "at-once";q=5;qu="concurrent-requests"
			RateLimit: "bytes";r=60000;t=10, "at-once";r=0`,
			told(inUnit(ietf("at-once", 5, 0, Unknown, 0), "concurrent-requests"),
				inUnit(ietf("bytes", 65535, 60000, 10*s, 10*s), "content-bytes"),
				ietf("peruser", 100, Unknown, Unknown, time.Minute))},
		"tokens as names": {429, `
			RateLimit-Policy: permin;q=50;w=60
			RateLimit: permin;r=0;t=15`,
			limited(15*s, ietf("permin", 50, 0, 15*s, time.Minute))},
		"a state without a policy": {200, `RateLimit: "default";r=50;t=30`,
			told(ietf("default", Unknown, 50, 30*s, 0))},
		"a state in bytes without a policy": {200, `RateLimit: "default";r=50;qu="content-bytes"`,
			told(inUnit(ietf("default", Unknown, 50, Unknown, 0), "content-bytes"))},
		"a policy without a state": {200, `RateLimit-Policy: "default";q=50;w=30`,
			told(ietf("default", 50, Unknown, Unknown, 30*s))},
		"names that are quoted twice": {200, `
			RateLimit-Policy: "p:\"odd\" \\ %C3%BC, and; more";q=1;w=1
			RateLimit: "p:\"odd\" \\ %C3%BC, and; more";r=0;t=2`,
			told(ietf(`p:"odd" \ %C3%BC, and; more`, 1, 0, 2*s, s))},
		"names at the edges": {200, `RateLimit-Policy: "~ !";q=1;w=1;pk=::, AZ!az09;q=2;w=2;pk=:YQ==:`,
			told(ietf("~ !", 1, Unknown, Unknown, s), ietf("AZ!az09", 2, Unknown, Unknown, 2*s))},
		"of two of one name the first counts": {200, `
			RateLimit-Policy: "a";q=10;w=1, "a";q=20;w=2
			RateLimit: "a";r=1;t=1, "a";r=2;t=2`,
			told(ietf("a", 10, 1, s, s))},
		"of two parameters the last counts": {200, `RateLimit-Policy: "a";q=10;q=20;w=1`,
			told(ietf("a", 20, Unknown, Unknown, s))},
		"unknown parameters": {200, `
			RateLimit-Policy: "a";q=10;w=1;acme-x="y, z";b;c=?1;d=@1659578233;e=1.5;f=-3;g=:YQ==:;h=tok/en
			RateLimit: "a";b=?0;r=1;c`,
			told(ietf("a", 10, 1, Unknown, s))},
		"a unit that is no word": {200, `RateLimit-Policy: "a";q=10;w=1;qu="content bytes"`,
			told(inUnit(ietf("a", 10, Unknown, Unknown, s), "other"))},

		"2022": {200, `
			RateLimit-Limit: 100
			RateLimit-Policy: 100;w=60, 1000;w=86400;comment="x"
			RateLimit-Remaining: 50
			RateLimit-Reset: 30`,
			told(ietf("", 100, 50, 30*s, time.Minute), ietf("", 1000, Unknown, Unknown, day))},
		"2021": {200, `
			RateLimit-Limit: 100, 100;w=60, 1000;w=86400
			RateLimit-Remaining: 50
			RateLimit-Reset: 30`,
			told(ietf("", 100, 50, 30*s, time.Minute), ietf("", 1000, Unknown, Unknown, day))},
		"2023": {429, `
			RateLimit: limit=100, remaining=0, reset=30
			RateLimit-Policy: 100;w=60`,
			limited(30*s, ietf("", 100, 0, 30*s, time.Minute))},
		"2023, without the limit": {200, `
			RateLimit: remaining=50, reset=30
			RateLimit-Policy: 100;w=60`,
			told(ietf("", 100, 50, 30*s, time.Minute))},
		"2023, one of two policies without the limit": {200, `
			RateLimit: remaining=50, reset=30
			RateLimit-Policy: 100;w=60, 10;w=1`,
			told(ietf("", Unknown, 50, 30*s, 0), ietf("", 10, Unknown, Unknown, s), ietf("", 100, Unknown, Unknown, time.Minute))},
		"2023, not numbers": {200, `RateLimit: limit="100", remaining=a, reset=30, more=5`, Hint{}},
		"only a reset":      {429, "RateLimit-Reset: 30", Hint{Limited: true, Status: 429}},

		"tokens under one window": {200, "x-ratelimit-limit-tokens: 100, 100;w=60, 5;w=1;qu=images",
			told(quota("x-ratelimit", "", "images", 5, Unknown, Unknown, s), quota("x-ratelimit", "", "tokens", 100, Unknown, Unknown, time.Minute))},
		"a window in the name counts more": {200, "x-ratelimit-limit-minute: 100;w=30",
			told(quota("x-ratelimit", "", "requests", 100, Unknown, Unknown, time.Minute))},
	})
}

// What is not well formed is left out, and hides nothing else.
func TestDraftTraps(t *testing.T) {
	t.Parallel()
	b := ietf("b", 7, Unknown, Unknown, time.Minute)
	for _, bad := range []string{
		`"a`, `"a\`, `"a\x";q=1`, "\"a\x01\";q=1", `"ä";q=1`, `a"x";q=1`, `"a" "x";q=1`, `"a;q=1`,
		`"a";`, `"a";q`, `"a";q=`, `"a";q=1;=`, `"a";q="1"`, `"a";q=-1`, `"a";q=one`, `"a";q=1;pk=:YQ`, `"a";q=1;x=?`, `"a";w=60`,
		`"a";q=9007199254740992`, `"a";q=0;w=60`, `"a";q=1;x=%"c"`, `"a";q=1;w=1e3`,
		`a=1;q=1`, `a=`, `;q=1`, ``, `(1 2);q=1`, `"";q=1`, `:YQ==:;q=1`, `?1;q=1`,
	} {
		for _, value := range []string{bad + `, "b";q=7;w=60`, `"b";q=7;w=60,` + bad, `"b";q=7;w=60 , , ` + bad + `,`} {
			got := Read(200, map[string][]string{"Ratelimit-Policy": {value}}, now)
			if !reflect.DeepEqual(got, told(b)) {
				t.Errorf("%s: %+v", value, got)
			}
		}
	}
	// States without a number, or without a name.
	for _, bad := range []string{`"b"`, `"b";r`, `"b";r="1"x`, `"b";r=-1`, `5;r=1`, `b=5;r=1`, `"b";t=5`} {
		got := Read(200, answer(t, "RateLimit-Policy: \"b\";q=7;w=60\nRateLimit: "+bad), now)
		if !reflect.DeepEqual(got, told(b)) {
			t.Errorf("%s: %+v", bad, got)
		}
	}
}

// Windows and resets that make no sense are not told; the rest of the policy is.
func TestDraftNumbers(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]time.Duration{
		"1": time.Second, "0.5": time.Second / 2, "31622400": 366 * day, "31622401": 0, "31622400.1": 366 * day,
		"0": 0, "-1": 0, "9999999999999999999999": 0, `"6m"`: 0, "a": 0,
	} {
		got := Read(200, answer(t, `RateLimit-Policy: "a";q=9007199254740991;w=`+value), now)
		if !reflect.DeepEqual(got, told(ietf("a", 9007199254740991, Unknown, Unknown, want))) {
			t.Errorf("w=%s: %+v, want %s", value, got, want)
		}
	}
	for value, want := range map[string]time.Duration{
		"0": 0, "30": 30 * time.Second, "2678400": MaxWait, "2678401": Unknown, "-1": Unknown, "a": Unknown,
	} {
		got := Read(200, answer(t, `RateLimit: "a";r=0;t=`+value), now)
		if !reflect.DeepEqual(got, told(ietf("a", Unknown, 0, want, 0))) {
			t.Errorf("t=%s: %+v, want %s", value, got, want)
		}
	}
}

// A value is read up to 1 KiB, of members that stand there whole.
func TestDraftIsCutBetweenMembers(t *testing.T) {
	t.Parallel()
	const tail = `, "b";q=1234`
	for length := maxValue - 40; length <= maxValue+40; length++ {
		pad := `"` + strings.Repeat("a", length-len(tail)-len(`"";q=1`)) + `";q=1`
		got := Read(200, answer(t, "RateLimit-Policy: "+pad+tail), now).Quotas
		var want []Quota
		if len(pad) < maxValue { // and its comma
			want = append(want, ietf(strings.Repeat("a", 64), 1, Unknown, Unknown, 0))
		}
		if length <= maxValue {
			want = append(want, ietf("b", 1234, Unknown, Unknown, 0))
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%d bytes: %+v", length, got)
		}
	}
}
