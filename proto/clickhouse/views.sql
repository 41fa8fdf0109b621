-- The SQL promise, with the run first: its other columns are those of the
-- views of a SQLite run, and so are their values (max and min of integers are
-- doubles here; the tables have them whole, as bits has those of samples).
-- Without its quotes nan is the number.

CREATE VIEW IF NOT EXISTS v_record AS
SELECT run, attempt, rank, seq, ts_ns, pass_name AS pass, class, instance,
    if(object_id = 0, '', concat(class, '-', toString(instance))) AS object,
    module, step, iteration, microbatch, bitAnd(bits, 1) AS recompute,
    io_name AS io, position, path,
    transform(dtype_id, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        16, 17, 18, 19, 20, 21, 22, 23, 24], ['float64', 'float32', 'float16',
        'bfloat16', 'float8_e4m3fn', 'float8_e5m2', 'float8_e4m3fnuz',
        'float8_e5m2fnuz', 'float8_e8m0fnu', 'int8', 'int16', 'int32',
        'int64', 'uint8', 'uint16', 'uint32', 'uint64', 'bool', 'complex32',
        'complex64', 'complex128', 'float4_e2m1fn_x2', 'text', 'opaque'], '')
        AS dtype,
    shape, n,
    if(is_given, multiIf(bitAnd(code, 3) = 0, finite_max, bitAnd(code, 3) = 2,
        1 / 0, bitAnd(code, 3) = 3, -1 / 0, NULL),
        multiIf(some_nan > 0, NULL, pinfs > 0, 1 / 0,
            ninfs > 0 AND isNull(finite_max), -1 / 0, finite_max)) AS max,
    if(is_given, multiIf(bitAnd(code, 12) = 0, finite_min,
        bitAnd(code, 12) = 8, 1 / 0, bitAnd(code, 12) = 12, -1 / 0, NULL),
        multiIf(some_nan > 0, NULL, ninfs > 0, -1 / 0,
            pinfs > 0 AND isNull(finite_min), 1 / 0, finite_min)) AS min,
    if(is_given, multiIf(bitAnd(code, 48) = 0, finite_mean,
        bitAnd(code, 48) = 32, 1 / 0, bitAnd(code, 48) = 48, -1 / 0, NULL),
        multiIf(some_nan > 0 OR (pinfs > 0 AND ninfs > 0), NULL,
            pinfs > 0, 1 / 0, ninfs > 0, -1 / 0, finite_mean)) AS mean,
    if(is_given, multiIf(bitAnd(code, 192) = 0, finite_std,
        bitAnd(code, 192) = 128, 1 / 0, bitAnd(code, 192) = 192, -1 / 0,
        NULL),
        if(some_nan > 0 OR pinfs > 0 OR ninfs > 0, NULL, finite_std)) AS std,
    multiIf(some_nan > 0, NULL, pinfs > 0 OR ninfs > 0, 1 / 0, finite_l2) AS l2,
    multiIf(is_given OR isNull(finite_max), NULL,
        dtype_id IN (9, 14, 15, 16, 17, 18, 22, 24), finite_max,
        finite_max > -finite_min, finite_max, -finite_min) AS absmax,
    absmin, nan_count AS `nan`, pinf, ninf, zero, subnormal,
    if(isNull(hash_bits), NULL,
        substring(concat('0000000000000000', lower(hex(hash_bits))),
            length(hex(hash_bits)) + 1)) AS hash,
    if(pass_id > 2, concat(pass_name, '-', path, '-', toString(step)),
        concat(pass_name, '-', class, '-', toString(instance), '-',
            toString(step), '-', io_name,
            if(position > 0, concat('.', toString(position)), ''))) AS name,
    concat(arrayStringConcat(arrayMap(b -> arrayElement(['recompute', 'eval',
        'local', 'final', 'scaled', 'skipped', 'exact', 'total', 'sparse',
        'complex', 'quantized', 'shard', 'materialized', 'unsupported',
        'nodata', 'text', 'copied', 'repeated', 'raised', 'packed', 'same',
        'operators', 'graph'], b + 1),
        arrayFilter(b -> bitAnd(bitShiftRight(bits, b), 1) = 1, range(23))),
        ' '), if(note = '', '', concat(' ', note))) AS labels,
    finite_max, finite_min, finite_mean, finite_std, finite_l2, samples,
    multiIf(rule = 1, concat('every ', toString(sampling_arg)), rule = 2,
        concat('random seed ', toString(sampling_arg)), NULL) AS sampling,
    histogram, stream
FROM (
    SELECT run, attempt, rank, seq, ts_ns, pass AS pass_id,
        transform(pass, [1, 2, 3, 4, 5, 6], ['forward', 'backward', 'grad',
            'param', 'user', 'optim'], '') AS pass_name,
        class, instance, object AS object_id, module, step, iteration,
        microbatch, labels AS bits, note,
        transform(io, [1, 2], ['input', 'output'], '') AS io_name, position,
        path, dtype AS dtype_id, shape, n, isNotNull(given) AS is_given,
        ifNull(given, 0) AS code, nans AS nan_count, pinf, ninf, zero,
        subnormal, ifNull(nans, 0) AS some_nan, ifNull(pinf, 0) AS pinfs,
        ifNull(ninf, 0) AS ninfs, max AS finite_max, min AS finite_min,
        mean AS finite_mean, std AS finite_std, l2 AS finite_l2, absmin,
        hash AS hash_bits, samples, sampling AS rule, sampling_arg,
        histogram, stream
    FROM record FINAL
);

CREATE VIEW IF NOT EXISTS v_object AS
SELECT DISTINCT run, id, class, instance,
    concat(class, '-', toString(instance)) AS object, module
FROM (SELECT run, object AS id, class, instance, module FROM record
      WHERE object > 0
      UNION ALL
      SELECT run, object AS id, class, instance, module FROM object);

CREATE VIEW IF NOT EXISTS v_loss AS
SELECT run, attempt, rank, seq, last, count, bytes, cause, ts_ns, stream
FROM loss FINAL;

CREATE VIEW IF NOT EXISTS v_run AS
SELECT run, run AS name, created_ns, attempt, rank, world, host, pid, state,
    real_ns AS started_ns, toInt64(seq) - toInt64(gone) AS records, lost,
    info, id AS stream, block_ms, spool_bytes, gone - gone AS pruned
FROM stream FINAL
GLOBAL ANY LEFT JOIN (
    SELECT run, stream AS id, epoch, sum(last - seq + 1) AS gone,
        sum(count) AS lost
    FROM loss FINAL GROUP BY run, stream, epoch
) AS losses USING (run, id, epoch);

-- Nothing is pruned here but whole runs: ALTER TABLE record DROP PARTITION.
CREATE VIEW IF NOT EXISTS v_pruned AS
SELECT run, attempt, rank, seq, last, count, cause AS rule, ts_ns, stream
FROM loss WHERE 0;

-- Of a part of a sample x are the bytes, u the bits, sign, e and m what a float
-- has in them; y and so on are those of the imaginary part. Doubles hold what
-- each float can be, so no step rounds. special is as in a SQLite run's table
-- dtype. z is where FORMAT.md says that random samples are, of which the upper
-- half times the elements of the sample's part counts.
CREATE VIEW IF NOT EXISTS v_sample AS
SELECT run, stream, seq, sample,
    multiIf(rule = 1, toInt64(sample * arg),
        rule = 2, toInt64(intDiv(toUInt64(n), k) * sample
            + least(sample, toUInt64(n) % k) + z_hi * part_hi
            + bitShiftRight(z_hi * part_lo, 32)
            + bitShiftRight(z_lo * part_hi, 32)
            + bitShiftRight(bitAnd(z_hi * part_lo, 4294967295)
                + bitAnd(z_lo * part_hi, 4294967295)
                + bitShiftRight(z_lo * part_lo, 32), 32)),
        sample > 0 AND sample = k - 1, n - 1,
        toInt64(sample * ((n - 1) / greatest(toInt64(k) - 1, 1)))) AS element,
    multiIf(special = 5, NULL,
        special = 0, if(sign > 0, toFloat64(u), toFloat64(reinterpretAsInt64(x)
            - if(bytes < 8, toInt64(bitShiftLeft(toUInt64(1), 8 * bytes)),
                 0))),
        special = 4, if(u = 255, NULL, exp2(toFloat64(u) - 127)),
        bytes = 8, if(isNaN(reinterpretAsFloat64(x)), NULL,
                      reinterpretAsFloat64(x)),
        special = 1 AND e = top, if(m = 0, sign / 0, NULL),
        special = 2 AND bitAnd(u, 127) = 127, NULL,
        special = 3 AND u = 128, NULL,
        sign * (m + if(e > 0, hidden, 0))
            * exp2(toFloat64(greatest(e, 1)) - bias - man)) AS value,
    multiIf(parts < 2, NULL,
        bytes = 8, if(isNaN(reinterpretAsFloat64(y)), NULL,
                      reinterpretAsFloat64(y)),
        y_e = top, if(y_m = 0, y_sign / 0, NULL),
        y_sign * (y_m + if(y_e > 0, hidden, 0))
            * exp2(toFloat64(greatest(y_e, 1)) - bias - man)) AS imag,
    hex(x) AS bits, of_step, of_pass, of_object, of_module, of_rank
FROM (
    SELECT run, stream, seq, sample, rule, arg, n, k, parts, bytes, man, top,
        hidden, bias, special, x, y, u, of_step, of_pass, of_object,
        of_module, of_rank,
        bitAnd(bitShiftRight(u, man), top) AS e, bitAnd(u, hidden - 1) AS m,
        if(signed AND bitShiftRight(u, 8 * bytes - 1) != 0, -1., 1.) AS sign,
        bitAnd(bitShiftRight(y_u, man), top) AS y_e,
        bitAnd(y_u, hidden - 1) AS y_m,
        if(bitShiftRight(y_u, 8 * bytes - 1) = 1, -1., 1.) AS y_sign,
        intDiv(toUInt64(n), k) + (sample < toUInt64(n) % k) AS part,
        bitShiftRight(part, 32) AS part_hi, bitAnd(part, 4294967295) AS part_lo,
        arg + (sample + 1) * 11400714819323198485 AS z_0,
        bitXor(z_0, bitShiftRight(z_0, 30)) * 13787848793156543929 AS z_1,
        bitXor(z_1, bitShiftRight(z_1, 27)) * 10723151780598845931 AS z_2,
        bitXor(z_2, bitShiftRight(z_2, 31)) AS z,
        bitShiftRight(z, 32) AS z_hi, bitAnd(z, 4294967295) AS z_lo
    FROM (
        SELECT run, stream, seq, toUInt64(i) AS sample, rule, arg, n, k, parts,
            bytes, special, of_step, of_pass, of_object, of_module, of_rank,
            substring(samples, toUInt32(1 + sample * parts * bytes), bytes)
                AS x,
            substring(samples, toUInt32(1 + (sample * parts + 1) * bytes),
                bytes) AS y,
            reinterpretAsUInt64(x) AS u, reinterpretAsUInt64(y) AS y_u,
            toUInt64(transform(type, [2, 3, 4, 5, 6, 7, 8, 19, 20],
                [23, 10, 7, 3, 2, 3, 2, 10, 23], 0)) AS man,
            toUInt64(transform(type, [2, 3, 4, 5, 6, 7, 8, 19, 20],
                [255, 31, 255, 15, 31, 15, 31, 31, 255], 0)) AS top,
            toInt64(transform(type, [2, 3, 4, 5, 6, 7, 8, 19, 20],
                [127, 15, 127, 7, 15, 8, 16, 15, 127], 0)) AS bias,
            bitShiftLeft(toUInt64(1), man) AS hidden,
            type NOT IN (9, 14, 15, 16, 17, 18, 22, 24) AS signed
        FROM (
            SELECT run, stream, seq, sampling AS rule, sampling_arg AS arg, n,
                samples, dtype AS type,
                toUInt64(transform(dtype, [1, 2, 3, 4, 11, 12, 13, 15, 16, 17,
                    19, 20, 21, 23], [8, 4, 2, 2, 2, 4, 8, 2, 4, 8, 2, 4, 8,
                    8], 1)) AS bytes,
                toUInt64(if(dtype IN (19, 20, 21), 2, 1)) AS parts,
                intDiv(toUInt64(length(samples)), bytes * parts) AS k,
                transform(dtype, [5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17,
                    18, 22, 24], [2, 3, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5,
                    5], 1) AS special,
                step AS of_step,
                transform(pass, [1, 2, 3, 4, 5, 6], ['forward', 'backward',
                    'grad', 'param', 'user', 'optim'], '') AS of_pass,
                if(object = 0, '', concat(class, '-', toString(instance)))
                    AS of_object,
                module AS of_module, rank AS of_rank, range(k) AS each
            FROM record FINAL
        ) ARRAY JOIN each AS i
    )
);

CREATE VIEW IF NOT EXISTS v_histogram AS
SELECT run, stream, seq, first + i AS bin,
    toInt64(first + i) - transform(type, [1, 2, 3, 4, 5, 6, 7, 8, 9, 19, 20,
        21, 22, 23, 24], [1023, 127, 15, 127, 7, 15, 8, 16, 127, 1023, 1023,
        1023, 0, 1023, 0], 1) AS exponent,
    reinterpretAsUInt64(substring(h, toUInt32(6 + i * width), width)) AS count,
    if(kind_id = 1, 'rows', 'exact') AS kind
FROM (
    SELECT run, stream, seq, histogram AS h,
        reinterpretAsUInt8(substring(h, 1, 1)) AS kind_id,
        reinterpretAsUInt8(substring(h, 2, 1)) AS type,
        toUInt64(reinterpretAsUInt8(substring(h, 3, 1))) AS width,
        toUInt64(reinterpretAsUInt16(substring(h, 4, 2))) AS first,
        range(intDiv(toUInt64(length(h) - 5), greatest(width, 1))) AS each
    FROM record FINAL WHERE length(histogram) > 5
) ARRAY JOIN each AS i;
