package schemas

import (
	"maps"
	"slices"

	"github.com/headway-go/headway/throttle/policy"
)

// What the fields of limits.yaml say. docs/limits-yaml.md has the same words.
var (
	aboutFile = map[string]string{
		"unmatched": "a scope that meets no rule at all: deny (default), fail or allow",
		"limits":    "scopes by the first name of their paths",
	}
	aboutScope = map[string]string{
		"rules":        "the limits of this level. A rule replaces that of the same name under *",
		"scopes":       "the names of the next level; * is any name",
		"owner":        "who answers for the scope",
		"apps":         "the applications that alone may spend from it",
		"hosts":        "the hosts whose answers count, such as api.example.com or *.example.com:443",
		"paused":       "true lets no task start; false lifts what * says",
		"paused_until": "when the pause ends, such as 2030-01-31T12:00:00Z",
		"weight":       "what it gets among the names beside it while all wait, 1 to 1000",
		"shares":       "what the names below it get while all wait",
		"answers":      "what follows from an API's answers: heed (default), refusals, pause or ignore, or fields",
	}
	aboutShare = map[string]string{
		"part":   "its guaranteed part, 1% to 100%",
		"weight": "its weight for what is left over, 1 to 1000",
	}
	aboutAnswers = map[string]string{
		"mode":   "heed (default), refusals, pause or ignore",
		"cut":    "by how much a refusal cuts a limit, 1% to 90% (default 15%)",
		"grow":   "by how much of the limit it grows again in each window, 1% to 100% (default 2%)",
		"least":  "what is left of the limit however often it is cut, 1% to 100% (default 10%)",
		"most":   "what a limit may grow to, 100% to 1000% (default 100%)",
		"pause":  "the first pause after a refusal that names no time, 100ms to 5m (default 1s)",
		"counts": "true has refused calls count against calendars and windows longer than an hour",
		"unit":   "the unit of resets that are plain numbers, s (default) or ms",
	}
	aboutRule = map[string]string{
		"name":           "its name, 1 to 128 bytes, without a colon at the end",
		"algorithm":      "how it counts: token-bucket, sliding-window, fixed-window, concurrency or calendar",
		"limit":          "how many units, or runs at once; 0 suspends: tasks wait",
		"per":            "the length of the window, such as 1s, 1h or 30d",
		"opens_on_use":   "true begins a fixed window with its first unit, not at a multiple of per",
		"burst":          "what a token bucket holds (default 1)",
		"lease":          "when the place of a crashed run is free, 1s to 24h (default 30s)",
		"on_redis_error": "while Redis cannot answer: closed (default), open or share",
		"margin":         "transit jitter added to the window, so that the bound holds at the API",
		"max_wait":       "how long a task waits for the rule at most",
		"resets":         "when a calendar's period begins, a cron expression such as \"0 0 * * *\", \"0 0 L * *\" for the last day of each month, or @monthly",
		"active":         "the hours in which the rule holds, such as \"* 8-19 * * 1-5\"",
		"timezone":       "of resets and active, such as America/Los_Angeles (default UTC)",
		"rollover":       "how much of what a period left over the next one gets at most (default 0)",
		"spread":         "true spreads what is left of a period over the time that is left",
		"shadow":         "true decides and counts, and stops no task",
		"unit":           "what it counts, such as tokens (default requests)",
		"unlimited":      "true removes an inherited rule of this name",
	}
)

// describe adds what is said of each field.
func describe(properties object, about map[string]string) object {
	for name, value := range properties {
		properties[name] = what(about[name], value.(object))
	}
	return properties
}

// LimitsFields are the fields of limits.yaml and what is said of each, by owner and name.
func LimitsFields() (list []Field) {
	for _, of := range []struct {
		owner string
		about map[string]string
	}{{"file", aboutFile}, {"scope", aboutScope}, {"share", aboutShare}, {"answers", aboutAnswers}, {"rule", aboutRule}} {
		for _, name := range slices.Sorted(maps.Keys(of.about)) {
			list = append(list, Field{of.owner, name, of.about[name]})
		}
	}
	return list
}

func limits() object {
	s := fields(describe(object{
		"unmatched": word(policy.Words("unmatched")...),
		"limits":    object{"$ref": "#/definitions/scopes"},
	}, aboutFile))
	s["title"] = "limits.yaml of Headway"
	s["definitions"] = object{"scopes": names(object{"$ref": "#/definitions/scope"}), "scope": scope(), "rule": rule()}
	return s
}

func scope() object {
	share := fields(describe(object{"part": percent(toHundred), "weight": whole(1, 1000)}, aboutShare))
	shares := names(share)
	shares["propertyNames"] = object{"allOf": []object{name(), {"not": object{"const": "*"}}}}
	shares["minProperties"], shares["maxProperties"] = 1, 100
	answers := fields(describe(object{
		"mode": word(policy.Words("answers")...), "cut": percent("([1-9]|[1-8][0-9]|90)"), "grow": percent(toHundred),
		"least": percent(toHundred), "most": percent("([1-9][0-9][0-9]|1000)"), "pause": duration(), "counts": flag(), "unit": word(policy.Words("answers.unit")...),
	}, aboutAnswers))
	answers["minProperties"] = 1
	answers["if"] = object{"required": []string{"mode"}, "properties": object{"mode": word("pause", "ignore")}}
	answers["then"] = object{"properties": object{"cut": false, "grow": false, "least": false, "most": false}} // nothing is corrected
	answers["allOf"] = []object{{"if": object{"required": []string{"mode"}, "properties": object{"mode": word("ignore")}}, "then": object{"maxProperties": 1}}}
	s := fields(describe(object{
		"rules":        object{"type": "array", "items": object{"$ref": "#/definitions/rule"}},
		"scopes":       object{"allOf": []object{{"$ref": "#/definitions/scopes"}}}, // beside $ref, draft 7 reads nothing else
		"owner":        name(),
		"apps":         list(name(), 100),
		"hosts":        list(object{"type": "string", "pattern": "^(\\*\\.)?[A-Za-z0-9:\\[\\]._-]+$"}, 100),
		"paused":       flag(),
		"paused_until": object{"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.,][0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$"},
		"weight":       whole(1, 1000),
		"shares":       shares,
		"answers":      object{"anyOf": []object{word(policy.Words("answers")...), answers}},
	}, aboutScope))
	s["if"] = object{"required": []string{"paused_until"}}
	s["then"] = object{"required": []string{"paused"}, "properties": object{"paused": object{"const": true}}}
	return s
}

const toHundred = "([1-9]|[1-9][0-9]|100)"

func percent(number string) object {
	return object{"type": "string", "pattern": "^" + number + "%$"}
}

func rule() object {
	s := fields(describe(object{
		"name": ruleName(), "algorithm": word(policy.Words("algorithm")...), "limit": whole(0, maxNumber), "per": duration(), "opens_on_use": flag(), "burst": whole(1, maxNumber),
		"lease": duration(), "on_redis_error": word(policy.Words("on_redis_error")...), "margin": duration(), "max_wait": duration(),
		"resets": cron(), "active": object{"type": "string", "pattern": "^ *[^ @]+( +[^ ]+){4} *$"}, "timezone": object{"type": "string", "minLength": 1},
		"rollover": whole(0, maxNumber), "spread": flag(), "shadow": flag(), "unit": unit(), "unlimited": flag(),
	}, aboutRule), "name")
	s["if"] = is("unlimited", true)
	s["then"] = object{"propertyNames": word("name", "unlimited")}
	s["else"] = object{"required": []string{"algorithm", "limit"}}
	var all []object
	for _, algorithm := range policy.Words("algorithm") {
		all = append(all, object{"if": is("algorithm", algorithm), "then": with(algorithm)})
	}
	s["allOf"] = append(all, object{
		"if":   object{"required": []string{"timezone"}, "not": object{"anyOf": []object{{"required": []string{"active"}}, is("algorithm", "calendar")}}},
		"then": object{"properties": object{"timezone": false}},
	})
	return s
}

// is matches what has a field of this value.
func is(field string, value any) object {
	return object{"required": []string{field}, "properties": object{field: object{"const": value}}}
}

// with is what a rule of an algorithm needs, and what it may not have.
func with(algorithm string) object {
	refused := object{}
	for _, field := range policy.FieldsNotWith(policy.Algorithm(algorithm)) {
		refused[field] = false
	}
	s := object{"properties": refused}
	switch algorithm {
	case "calendar":
		s["required"] = []string{"resets"}
	case "concurrency":
	default:
		s["required"] = []string{"per"}
	}
	return s
}
