// Package limitsyaml reads and writes limits.yaml, the form in which people write policies and in
// which Redis stores them.
//
//	rules, err := limitsyaml.Load("limits.yaml")
//	limiter, err := throttle.New(rdb, rules, throttle.Config{})
//
// Package policy checks the limits; this package adds each fault's place in the file. For programs
// that change limits, it also reads and writes single rules, and the values of other fields, in
// their form in the file.
package limitsyaml
