// The proleptic Gregorian calendar, on days since 1970-01-01.
//
// A year is counted from March, so that the leap day is its last: day `d` of such a
// year lies in month (5 d + 2) / 153, since from March on the lengths repeat as
// 31 30 31 30 31 in every 153 days. 400 years have 146097 days.
#pragma once

WL_DEVICE i64 floor_divide(i64 a, i64 b) {
  const i64 quotient = a / b;
  return quotient - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

// Rounded down.
template <class R, class A>
WL_DEVICE auto floored(const A& a, i64 b) {
  return lift(a, [&](auto v) { return static_cast<R>(floor_divide(v, b)); });
}

struct Civil {
  i64 year;
  i32 month;  // 1 to 12
  i32 day;    // 1 to 31
};

WL_DEVICE Civil civil_of(i64 days) {
  const i64 since_march_0 = days + 719468;  // from 0000-03-01
  const i64 era = floor_divide(since_march_0, 146097);
  const i64 day_of_era = since_march_0 - era * 146097;
  const i64 year_of_era =
      (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
  const i64 day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const i64 shifted = (5 * day_of_year + 2) / 153;  // 0 is March
  const i32 day = static_cast<i32>(day_of_year - (153 * shifted + 2) / 5 + 1);
  const i32 month = static_cast<i32>(shifted < 10 ? shifted + 3 : shifted - 9);
  return Civil{year_of_era + era * 400 + (month <= 2 ? 1 : 0), month, day};
}

WL_DEVICE i64 days_of(i64 year, i32 month, i32 day) {
  const i64 shifted_year = year - (month <= 2 ? 1 : 0);
  const i64 era = floor_divide(shifted_year, 400);
  const i64 year_of_era = shifted_year - era * 400;
  const i64 day_of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
  return era * 146097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719468;
}

// 0 is Sunday; 1970-01-01 was a Thursday.
WL_DEVICE i32 day_of_week(i64 days) { return static_cast<i32>(days + 4 - floor_divide(days + 4, 7) * 7); }

// ISO 8601: weeks start on Monday, and week 1 holds the year's first Thursday.
WL_DEVICE i32 iso_week(i64 days) {
  const i64 thursday = days - (day_of_week(days) + 6) % 7 + 3;
  const i64 first = days_of(civil_of(thursday).year, 1, 1);
  return static_cast<i32>((thursday - first) / 7 + 1);
}

struct ExtractYear {
  WL_MEMBER static i32 of(i64 days) { return static_cast<i32>(civil_of(days).year); }
};
struct ExtractQuarter {
  WL_MEMBER static i32 of(i64 days) { return (civil_of(days).month + 2) / 3; }
};
struct ExtractMonth {
  WL_MEMBER static i32 of(i64 days) { return civil_of(days).month; }
};
struct ExtractWeek {
  WL_MEMBER static i32 of(i64 days) { return iso_week(days); }
};
struct ExtractDay {
  WL_MEMBER static i32 of(i64 days) { return civil_of(days).day; }
};
struct ExtractDayOfWeek {
  WL_MEMBER static i32 of(i64 days) { return day_of_week(days); }
};
struct ExtractDayOfYear {
  WL_MEMBER static i32 of(i64 days) {
    return static_cast<i32>(days - days_of(civil_of(days).year, 1, 1) + 1);
  }
};

// A field of a date, or of the day that a timestamp of `per_day` ticks a day falls on.
template <class Part, class A>
WL_DEVICE auto extract(const A& a, i64 per_day) {
  return lift(a, [&](auto v) { return Part::of(floor_divide(v, per_day)); });
}

// A field of the time of day: whole units of `unit` ticks, modulo `modulus` of them.
template <class A>
WL_DEVICE auto extract_time(const A& a, i64 unit, i64 modulus) {
  return lift(a, [&](auto v) {
    const i64 units = floor_divide(v, unit);
    return static_cast<i32>(units - floor_divide(units, modulus) * modulus);
  });
}

struct TruncateYear {
  WL_MEMBER static i64 of(i64 days) { return days_of(civil_of(days).year, 1, 1); }
};
struct TruncateQuarter {
  WL_MEMBER static i64 of(i64 days) {
    const Civil c = civil_of(days);
    return days_of(c.year, (c.month - 1) / 3 * 3 + 1, 1);
  }
};
struct TruncateMonth {
  WL_MEMBER static i64 of(i64 days) { return days - civil_of(days).day + 1; }
};
struct TruncateWeek {
  WL_MEMBER static i64 of(i64 days) { return days - (day_of_week(days) + 6) % 7; }
};

// The start of a calendar period, in ticks.
template <class R, class Period, class A>
WL_DEVICE auto truncate(const A& a, i64 per_day) {
  return lift(a, [&](auto v) { return static_cast<R>(Period::of(floor_divide(v, per_day))) * static_cast<R>(per_day); });
}

// The start of a period of `unit` ticks: downwards, also before 1970.
template <class R, class A>
WL_DEVICE auto truncate_ticks(const A& a, i64 unit) {
  return lift(a, [&](auto v) { return static_cast<R>(floor_divide(v, unit)) * static_cast<R>(unit); });
}
